//! The documents' commands and keys exist.

use std::path::Path;

use clap::Parser as _;
use doorbuster::process::command::Cli;

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The lines of shell blocks, without prompts, comments and continuations.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside && (line.contains("sh") || line.contains("console"));
            continue;
        }
        let line = line.trim().trim_start_matches("$ ");
        if inside && (line.starts_with("doorbuster ") || line.starts_with("target/release/doorbuster ")) {
            found.push(
                line.split(" #")
                    .next()
                    .expect("a part")
                    .split(" > ")
                    .next()
                    .expect("a part")
                    .trim()
                    .to_owned(),
            );
        }
    }
    found
}

#[test]
fn every_doorbuster_command_in_the_documents_is_understood() {
    let mut count = 0;
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        for command in commands(&read(document)) {
            let words = command.split_whitespace().map(|word| word.trim_matches(|c| c == '"' || c == '\''));
            if let Err(error) = Cli::try_parse_from(words) {
                let shown = matches!(
                    error.kind(),
                    clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion
                );
                assert!(shown, "{document}: {command}\n{error}");
            }
            count += 1;
        }
    }
    assert!(count >= 8, "only {count} commands found: the test no longer finds them");
}

#[test]
fn every_path_and_make_target_in_the_documents_exists() {
    let makefile = read("Makefile");
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = read(document);
        for target in text
            .split("make ")
            .skip(1)
            .filter_map(|rest| rest.split(|c: char| !c.is_ascii_lowercase()).next())
        {
            let named = ["demo", "test", "check"].contains(&target);
            assert!(!named || makefile.contains(&format!("\n{target}:")), "{document}: make {target}");
        }
        for path in text.split('`').skip(1).step_by(2) {
            let looks_like_one = ["src/", "lua/", "config/", "docker/", "tests/", "migrations/", "scripts/"]
                .iter()
                .any(|folder| path.starts_with(folder));
            let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            if looks_like_one && plain {
                assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists(), "{document} names {path}");
            }
        }
    }
}
