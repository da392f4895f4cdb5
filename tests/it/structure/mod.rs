//! Checks of the architecture: which modules may use which library and which other module, what a Lua file's header
//! must say, and how large files and functions may be.

mod graph;
mod sizes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use doorbuster::fault::{CHANGE_POINTS, POINTS, REBUILD_POINTS, REPLAY_POINTS, STALL_POINTS};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("readable").flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, ending, found);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join(folder), ending, &mut found);
    assert!(!found.is_empty(), "no {ending} files in {folder}");
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root()).expect("inside").display().to_string();
            (name, std::fs::read_to_string(&path).expect("readable"))
        })
        .collect()
}

/// The module of a file: `gate` for `src/gate/keys.rs`, `main` for `src/main.rs`.
fn module(file: &str) -> &str {
    let rest = file.strip_prefix("src/").expect("in src");
    rest.split('/').next().expect("a name").trim_end_matches(".rs")
}

fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn each_library_is_named_by_its_owners_alone() {
    let owners: [(&str, &[&str]); 7] = [
        ("redis::", &["gate", "lease", "link", "rehearsal"]),
        ("lapin::", &["queue", "rehearsal"]),
        ("sea_orm::", &["store"]),
        ("sqlx::", &["store", "rehearsal"]),
        ("axum::", &["front", "rehearsal"]),
        ("doorbuster_migrations", &["store"]),
        ("opentelemetry_proto::", &["trace"]),
    ];
    for (file, text) in files("src", "rs") {
        let text = without_comments(&text);
        for (library, owners) in &owners {
            // One of our modules may have the library's name: `self::redis`, `super::redis`.
            let names = text.match_indices(library).any(|(at, _)| {
                let before = text[..at].chars().next_back().unwrap_or(' ');
                !before.is_alphanumeric() && before != '_' && before != ':'
            });
            let ours = file.starts_with("src/rehearsal/servers/") && *library == "redis::";
            assert!(
                !names || ours || owners.contains(&module(&file)),
                "{file} names {library}, which is owned by {owners:?}"
            );
        }
    }
}

#[test]
fn modules_depend_downwards_only() {
    // Each may use itself and those after it in the list.
    let order = [
        "main",
        "lib",
        "cli",
        "process",
        "rehearsal",
        "front",
        "worker",
        "maintenance",
        "recovery",
        "control",
        "orders",
        "audit",
        "intake",
        "settlement",
        "gate",
        "lease",
        "queue",
        "store",
        "webhook",
        "trace",
        "link",
        "fault",
        "telemetry",
        "domain",
    ];
    let seams = ["gate", "lease", "queue", "store"];
    let rank: BTreeMap<&str, usize> = order.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    for (file, text) in files("src", "rs") {
        let from = module(&file);
        for to in order.iter().filter(|to| without_comments(&text).contains(&format!("crate::{to}::"))) {
            assert!(rank[from] <= rank[to], "{file} uses {to}, which is above it");
            let both_seams = seams.contains(&from) && seams.contains(to) && from != *to;
            assert!(!both_seams, "{file} uses {to}: the seams never import each other");
        }
    }
}

/// A mistake of the product must not hide itself in the judge's own reading.
#[test]
fn the_judge_uses_nothing_of_the_product() {
    let judge = "src/rehearsal/judge/";
    let files: Vec<_> = files("src", "rs").into_iter().filter(|(file, _)| file.starts_with(judge)).collect();
    assert!(files.len() > 10, "{} files", files.len());
    for (file, text) in files {
        let text = without_comments(&text);
        let uses = text.matches("crate::").count();
        let visibility = text.matches("pub(in crate::rehearsal)").count();
        let of_its_own = text.matches("crate::rehearsal::judge::").count() + visibility;
        assert_eq!(uses, of_its_own, "{file} uses the product");
    }
}

#[test]
fn only_the_worker_acknowledges() {
    for (file, text) in files("src", "rs") {
        let acks = without_comments(&text).contains(".ack(");
        assert!(!acks || ["worker", "queue"].contains(&module(&file)), "{file} acknowledges a delivery");
    }
}

#[test]
fn every_lua_file_says_what_it_takes_and_answers() {
    let rust: String = files("src", "rs").into_iter().map(|(_, text)| text).collect();
    for (file, text) in files("lua", "lua") {
        assert!(text.starts_with("#!lua"), "{file} must begin with #!lua, for its flags");
        let header: Vec<&str> = text.lines().skip(1).take_while(|line| line.starts_with("--")).collect();
        let body: String = text.lines().skip(1 + header.len()).collect::<Vec<_>>().join("\n");
        let header = header.join("\n");
        for part in ["-- KEYS", "-- ARGV", "-- Reply"] {
            assert!(header.contains(part), "{file}: the header lacks {part}");
        }
        // The header must name the highest key and argument number that the body uses.
        for array in ["KEYS", "ARGV"] {
            let highest = (1..=9).filter(|n| body.contains(&format!("{array}[{n}]"))).max().unwrap_or(0);
            let line = header.split(&format!("-- {array}")).nth(1).expect("checked above");
            let section =
                line.split("-- ARGV").next().expect("a part").split("-- Reply").next().expect("a part");
            for n in 1..=highest {
                let named = section.contains(&format!(" {n} "));
                assert!(
                    named || section.contains("each"),
                    "{file}: {array}[{n}] is used, and the header does not say what it is"
                );
            }
        }
        assert!(rust.contains(&format!("{file}\")")), "{file} is not used");
        let word = header
            .split("-- Reply")
            .nth(1)
            .expect("checked above")
            .split_whitespace()
            .next()
            .expect("a reply");
        let plain = word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        assert!(
            !plain || body.contains(&format!("'{word}'")) || ["how"].contains(&word),
            "{file}: the header answers {word}, the body does not"
        );
    }
}

/// If one machine's clock set a lease and another's judged it, the lease would end too early or too late.
#[test]
fn leases_know_no_clock_but_that_of_redis_and_a_monotonic_one() {
    for (file, text) in files("lua", "lua").into_iter().filter(|(file, _)| file.starts_with("lua/lease/")) {
        assert!(text.contains("redis.call('TIME')"), "{file} judges by another clock");
        let times = text.split("-- ARGV").nth(1).and_then(|text| text.split("-- Reply").next());
        let times = times.expect("a header").replace("cursor", "");
        assert!(!times.contains("now in"), "{file} takes the time from its caller");
    }
    for (file, text) in files("src", "rs").into_iter().filter(|(file, _)| file.starts_with("src/lease/")) {
        for clock in ["SystemTime", "Millis", "Utc", "UNIX_EPOCH"] {
            assert!(!without_comments(&text).contains(clock), "{file} reads the wall clock: {clock}");
        }
    }
}

#[test]
fn every_failure_point_is_in_the_code_once() {
    let rust: String = files("src", "rs")
        .into_iter()
        .filter(|(file, _)| file != "src/fault.rs")
        .map(|(_, text)| text.split_whitespace().collect::<String>())
        .collect();
    let points: Vec<&str> =
        [&POINTS[..], &CHANGE_POINTS[..], &REBUILD_POINTS[..], &STALL_POINTS[..], &REPLAY_POINTS[..]]
            .concat();
    for point in &points {
        assert_eq!(rust.matches(&format!("fault!(\"{point}\"")).count(), 1, "{point}");
    }
    assert_eq!(rust.matches("fault!(\"").count(), points.len(), "a point is not listed");
}

/// A run of the controls takes an hour; this check that they still fit takes a moment.
#[test]
fn every_negative_control_fits_the_sources_and_names_a_test() {
    let text = std::fs::read_to_string(root().join("tests/controls/controls.toml")).expect("readable");
    let controls: toml::Table = text.parse().expect("TOML");
    let controls = controls["control"].as_array().expect("a list");
    assert!(controls.len() >= 12, "only {} controls", controls.len());
    let tests: BTreeMap<String, String> = files("tests/it", "rs").into_iter().collect();
    for control in controls {
        let name = control["name"].as_str().expect("a name");
        for change in control["change"].as_array().expect("changes") {
            let file = change["file"].as_str().expect("a file");
            let source = std::fs::read_to_string(root().join(file)).expect("a file of the project");
            let count = source.matches(change["from"].as_str().expect("a text")).count();
            assert_eq!(count, 1, "{name}: what it changes in {file} is there {count} times");
        }
        let by: Vec<&str> = control["caught_by"].as_str().expect("a test").split("::").collect();
        let test = by.last().expect("a name");
        // The path may continue with a module inside the file: `seams::store::postgres::`.
        let file = (1..by.len()).flat_map(|depth| {
            let path = by[..depth].join("/");
            [format!("tests/it/{path}/mod.rs"), format!("tests/it/{path}.rs")]
        });
        let source = file.filter_map(|file| tests.get(&file)).next_back().expect("a file of tests");
        assert!(source.contains(test), "{name}: there is no test {test}");
    }
}

/// Cargo reads the manifest of every member, whatever it builds.
#[test]
fn the_image_is_built_from_every_crate_of_the_workspace() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).expect("readable");
    let manifest: toml::Table = read("Cargo.toml").parse().expect("TOML");
    let dockerfile = read("docker/Dockerfile");
    let members = manifest["workspace"]["members"].as_array().expect("a list");
    assert!(members.len() >= 2, "{members:?}");
    for member in members.iter().filter_map(|member| member.as_str()) {
        let copied = [format!("COPY {member} "), format!("COPY {member}/Cargo.toml ")];
        assert!(copied.iter().any(|line| dockerfile.contains(line)), "the image lacks {member}");
    }
}

#[test]
fn nothing_unfinished_is_left_in_the_code() {
    let marks = ["todo!(", "unimplemented!(", "dbg!(", concat!("TO", "DO"), concat!("FIX", "ME")];
    for (file, text) in
        files("src", "rs").into_iter().chain(files("lua", "lua")).chain(files("migrations", "rs"))
    {
        for mark in marks {
            assert!(!text.contains(mark), "{file} contains {mark}");
        }
    }
}

/// A file that no `mod` names is never compiled, and its tests never run.
#[test]
fn every_file_is_compiled() {
    for folder in ["src", "tests/it"] {
        let all = files(folder, "rs");
        for (file, _) in &all {
            let path = Path::new(file);
            let parent = path.parent().expect("a folder");
            let (declared, parent) = match path.file_stem().and_then(|stem| stem.to_str()) {
                Some("main" | "lib") => continue,
                Some("mod") => (parent.file_name().expect("a name"), parent.parent().expect("a folder")),
                _ => (path.file_stem().expect("a name"), parent),
            };
            let declaration = format!("mod {};", declared.to_string_lossy());
            let parents = ["mod.rs", "lib.rs", "main.rs"].map(|name| parent.join(name).display().to_string());
            let is_declared = all.iter().any(|(name, text)| {
                parents.contains(name) && text.lines().any(|line| line.trim_end().ends_with(&declaration))
            });
            assert!(is_declared, "no `{declaration}` in {}: {file} is not compiled", parent.display());
        }
    }
}
