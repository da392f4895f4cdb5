//! Negative controls: plants known mistakes in a copy of the sources, one at a time, and runs the test that must catch
//! each one. A test that misses its mistake proves nothing.
//!
//! `make controls` runs them all, `cargo test --test controls -- NAME` runs one.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use serde::Deserialize;

#[derive(Deserialize)]
struct Controls {
    control: Vec<Control>,
}

#[derive(Deserialize)]
struct Control {
    name: String,
    mistake: String,
    caught_by: String,
    #[serde(rename = "change")]
    changes: Vec<Change>,
}

#[derive(Deserialize)]
struct Change {
    file: String,
    from: String,
    to: String,
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("tests/controls/controls.toml")).expect("controls.toml");
    let Controls { control: mut controls } = toml::from_str(&text).expect("controls as TOML");
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if let Some(unknown) = wanted.iter().find(|name| controls.iter().all(|control| control.name != **name)) {
        eprintln!("{unknown} is no control: the names are in tests/controls/controls.toml");
        return ExitCode::FAILURE;
    }
    controls.retain(|control| wanted.is_empty() || wanted.contains(&control.name));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let copy = folder.path().join("doorbuster");
    for name in ["Cargo.toml", "Cargo.lock", "src", "lua", "migrations", "config", "docs", "tests"] {
        copy_all(&root.join(name), &copy.join(name));
    }
    // A separate build folder: cargo identifies a package by its path in the workspace, and would take an artefact of
    // the copy for one of the project.
    let target = root.join("target/controls");

    let mut filters: Vec<&str> = controls.iter().map(|control| control.caught_by.as_str()).collect();
    filters.sort_unstable();
    filters.dedup();
    println!("without a mistake: {} tests", filters.len());
    if !builds(&copy, &target) || !passes(&copy, &target, &filters, Stdio::inherit()) {
        println!("the unchanged copy does not pass, so no control can be judged");
        return ExitCode::FAILURE;
    }
    let mut missed = 0;
    for control in &controls {
        let started = Instant::now();
        let mut before = Vec::new();
        for change in &control.changes {
            let path = copy.join(&change.file);
            let text = std::fs::read_to_string(&path).expect("a file of the project");
            assert_eq!(text.matches(&change.from).count(), 1, "{}: {}", control.name, change.file);
            std::fs::write(&path, text.replacen(&change.from, &change.to, 1)).expect("written");
            before.push((path, text));
        }
        let verdict = if !builds(&copy, &target) {
            "DOES NOT BUILD"
        } else {
            judge(&copy, &target, &control.caught_by)
        };
        missed += usize::from(verdict != "caught");
        println!(
            "{verdict:<8} {:<28} {:>4.0} s  {}\n{:42} by {}",
            control.name,
            started.elapsed().as_secs_f64(),
            control.mistake,
            "",
            control.caught_by
        );
        // Restored from the copy, because the project may have changed meanwhile.
        for (path, text) in before.into_iter().rev() {
            std::fs::write(path, text).expect("restored");
        }
    }
    println!("{} caught, {missed} missed", controls.len() - missed);
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cargo(copy: &Path, target: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(copy).args(["test", "--quiet", "--test", "it", "--target-dir"]).arg(target);
    cargo.stdin(Stdio::null());
    cargo
}

fn builds(copy: &Path, target: &Path) -> bool {
    let output = cargo(copy, target).arg("--no-run").output().expect("cargo runs");
    if !output.status.success() {
        println!("{}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

fn passes(copy: &Path, target: &Path, filters: &[&str], out: Stdio) -> bool {
    let mut cargo = cargo(copy, target);
    cargo.args(["--", "--exact", "--test-threads=4"]).args(filters);
    cargo.stdout(out).stderr(Stdio::null()).status().expect("cargo runs").success()
}

/// A mistake is caught only if this very test fails. A test that could not run does not count.
fn judge(copy: &Path, target: &Path, test: &str) -> &'static str {
    let mut cargo = cargo(copy, target);
    let output = cargo.args(["--", "--exact", test]).output().expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = text.contains(&format!("---- {test} stdout ----")) && text.contains("1 failed");
    match (output.status.success(), failed) {
        (true, _) => "MISSED",
        (false, true) => {
            let why =
                text.lines().skip_while(|line| !line.contains("panicked at")).nth(1).unwrap_or_default();
            println!("         {why}");
            "caught"
        }
        (false, false) => "NOT RUN",
    }
}

fn copy_all(from: &Path, to: &PathBuf) {
    if from.is_dir() {
        std::fs::create_dir_all(to).expect("a folder");
        for entry in std::fs::read_dir(from).expect("readable").flatten() {
            copy_all(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        std::fs::create_dir_all(to.parent().expect("a parent folder")).expect("a folder");
        std::fs::copy(from, to).expect("copied");
    }
}
