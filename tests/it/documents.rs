//! The documents agree with the code: the commands, paths, links, metrics and tests in them exist.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use clap::Parser as _;
use doorbuster::cli::Cli;
use doorbuster::telemetry::{Kind, METRICS, SALE_GAUGES, queries};

use crate::structure::files;

pub fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every page of documentation: the pages at the top of the repository, and all of `docs`.
pub fn pages() -> Vec<String> {
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned);
    let mut pages: Vec<String> =
        top.into_iter().chain(files("docs", "md").into_iter().map(|(page, _)| page)).collect();
    pages.sort();
    pages
}

/// The lines of shell blocks, without prompts, comments and continuations.
pub fn commands(text: &str) -> Vec<String> {
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

/// Splits a command as a shell does: quoted text stays together as one word.
pub fn words(command: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for c in command.chars() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (' ', None) => words.push(String::new()),
            (c, _) => words.last_mut().expect("one word").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn every_doorbuster_command_in_the_documents_parses() {
    let mut count = 0;
    for document in pages() {
        for command in commands(&read(&document)) {
            if let Err(error) = Cli::try_parse_from(words(&command)) {
                let prints_help = matches!(
                    error.kind(),
                    clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion
                );
                assert!(prints_help, "{document}: {command}\n{error}");
            }
            count += 1;
        }
    }
    assert!(count >= 8, "only {count} commands found: the test no longer finds them");
}

#[test]
fn every_alert_names_an_existing_page_and_existing_metrics() {
    let (alerts, runbook) = (read("config/prometheus/alerts.yml"), read("docs/runbook.md"));
    let pages: Vec<String> = runbook
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(|title| title.to_lowercase().replace(' ', "-"))
        .collect();
    let source = text_below(&["src"]);
    let rules: Vec<&str> = alerts.split("- alert: ").skip(1).collect();
    assert!(rules.len() >= 12, "{} rules", rules.len());
    for rule in &rules {
        let name = rule.lines().next().expect("a name");
        let (_, page) =
            rule.split_once("runbook: docs/runbook.md#").unwrap_or_else(|| panic!("{name}: names no page"));
        let page = page.lines().next().expect("a line").trim();
        assert!(pages.iter().any(|known| known == page), "{name}: there is no page {page}");
        assert!(rule.contains("severity: page") || rule.contains("severity: ticket"), "{name}: no severity");
        let expression =
            rule.lines().find_map(|line| line.trim().strip_prefix("expr: ")).expect("an expression");
        let words = expression.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        // A histogram is three series.
        let series = words.filter(|word| word.starts_with("doorbuster_"));
        let metrics: Vec<&str> =
            series.map(|name| name.trim_end_matches("_bucket").trim_end_matches("_count")).collect();
        assert!(!metrics.is_empty(), "{name}: no metric in {expression}");
        for metric in metrics {
            assert!(source.contains(&format!("\"{metric}\"")), "{name}: nothing measures {metric}");
        }
    }
    // Nobody would read a page that no alert links to.
    for page in pages {
        assert!(alerts.contains(&format!("#{page}\n")), "no alert leads to {page}");
    }
}

/// A panel that asks for another name stays empty, or shows a nought.
#[test]
fn the_dashboard_asks_for_metrics_of_the_catalogue() {
    let is_of_a_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let known: BTreeSet<&str> =
        METRICS.iter().map(|metric| metric.name).chain(SALE_GAUGES.iter().map(|gauge| gauge.name)).collect();
    let mut asked = 0;
    for (panel, query) in queries("1m") {
        for name in query.split(|letter| !is_of_a_name(letter)).filter(|name| name.starts_with("doorbuster_"))
        {
            let of_a_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(
                known.contains(name) || of_a_histogram.is_some_and(|name| known.contains(name)),
                "{panel}: {query}"
            );
            asked += 1;
        }
    }
    assert!(asked > 40, "{asked} names were found");
}

/// Besides those in the catalogue, the sources have no metric, and the page has no row.
#[test]
fn every_metric_is_in_the_catalogue_and_on_its_page() {
    let source: String = files("src", "rs")
        .into_iter()
        .filter(|(name, _)| !name.contains("telemetry/"))
        .map(|(_, text)| text)
        .collect();
    let measured: BTreeSet<&str> = source
        .split('"')
        .filter(|text| text.starts_with("doorbuster_") && !text.contains(' ') && !text.ends_with('_'))
        .collect();
    let kind = |kind| match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    };
    let of_sales = SALE_GAUGES.iter().map(|gauge| (gauge.name, "gauge", gauge.help));
    let known: Vec<(&str, &str, &str)> =
        METRICS.iter().map(|metric| (metric.name, kind(metric.kind), metric.help)).chain(of_sales).collect();
    assert_eq!(measured, known.iter().map(|(name, ..)| *name).collect());
    let page = read("docs/metrics.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let rows: Vec<(&str, &str, &str)> =
        rows.iter().map(|cells| (cells[0].trim_matches('`'), cells[1], cells[3])).collect();
    assert_eq!(rows, known);
}

#[test]
fn prometheus_takes_the_alerts_and_their_unit_tests_pass() {
    let (alerts, tests) = ("config/prometheus/alerts.yml", "config/prometheus/alerts.test.yml");
    for arguments in [["check", "rules", alerts], ["test", "rules", tests]] {
        let root = env!("CARGO_MANIFEST_DIR");
        let output = Command::new("promtool").args(arguments).current_dir(root).output().expect("promtool");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.contains("SUCCESS"), "{arguments:?}: {said}");
    }
    let unit_tests = read(tests);
    for rule in read(alerts).split("- alert: ").skip(1) {
        let name = rule.lines().next().expect("a name");
        let times = |what: &str| unit_tests.lines().filter(|line| line.trim() == what).count();
        let quiet = unit_tests.matches(&format!("- {{ alertname: {name}, eval_time: ")).count();
        assert_eq!(
            (times(&format!("- alertname: {name}")), quiet),
            (1, 1),
            "{name} fires in one test, and is quiet first"
        );
    }
}

/// The text of all Rust files below these folders.
fn text_below(folders: &[&str]) -> String {
    folders.iter().flat_map(|folder| files(folder, "rs")).map(|(_, text)| text).collect()
}

/// `increase()` is zero for a counter that appears only with its first event.
#[test]
fn every_counter_of_an_alert_starts_at_zero() {
    let (alerts, metrics) = (read("config/prometheus/alerts.yml"), read("src/process/metrics.rs"));
    let (_, begin) = metrics.split_once("fn begin_at_zero").expect("the list");
    let begin = begin.split("\n}\n").next().expect("a part");
    let counters: Vec<&str> = alerts
        .split("increase(")
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_lowercase() && c != '_').next().expect("a name"))
        .collect();
    assert!(counters.len() >= 6, "{counters:?}");
    for counter in counters {
        assert!(begin.contains(&format!("\"{counter}\"")), "{counter} only appears with its first event");
    }
}

/// Each row of the failure table names the tests of its fault.
#[test]
fn every_row_of_the_failure_table_names_an_existing_test() {
    let text = read("docs/failures.md");
    let (_, section) = text.split_once("## What can go wrong").expect("the section");
    let section = section.split("\n## ").next().expect("a part");
    let tests = tests();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    assert!(rows.len() >= 30, "{} rows", rows.len());
    for row in rows {
        let tested_by = row.trim_end_matches('|').rsplit('|').next().expect("a cell");
        // This row is the title of a group.
        if row.starts_with("| **") && tested_by.trim().is_empty() {
            continue;
        }
        let names: Vec<&str> = tested_by.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "names no test: {row}");
        for name in names {
            assert!(tests.contains(&format!("fn {name}(")), "there is no test {name}: {row}");
        }
    }
}

#[test]
fn every_row_of_the_lease_table_names_an_existing_test() {
    let (text, tests) = (read("src/lease/mod.rs"), tests());
    let (_, section) = text.split_once("//! # Beside others").expect("the section");
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("//! | ")).skip(2).collect();
    assert!(rows.len() >= 20, "{} rows", rows.len());
    for row in rows {
        let ours = row.trim_end_matches(" |").rsplit(" | ").next().expect("a cell");
        let names: Vec<&str> = ours.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty() || ours.starts_with("left out: "), "names no test: {row}");
        for name in names {
            assert!(tests.contains(&format!("fn {name}(")), "there is no test {name}: {row}");
        }
    }
}

fn tests() -> String {
    text_below(&["tests/it", "tests/races"])
}

#[test]
fn every_path_and_make_target_in_the_documents_exists() {
    let makefile = read("Makefile");
    for document in pages() {
        let text = read(&document);
        for target in text
            .split("make ")
            .skip(1)
            .filter_map(|rest| rest.split(|c: char| !c.is_ascii_lowercase()).next())
        {
            let named = ["demo", "test", "check", "chaos", "controls"].contains(&target);
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

/// The anchor that a Markdown renderer creates for a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
}

#[test]
fn every_link_between_the_documents_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for document in pages() {
        let text = read(&document);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            count += 1;
            let (path, place) =
                link.split_once('#').map_or((link, None), |(path, place)| (path, Some(place)));
            let folder = root.join(&document).parent().expect("a folder").to_path_buf();
            let target = if path.is_empty() { root.join(&document) } else { folder.join(path) };
            assert!(target.exists(), "{document} links to {link}, which does not exist");
            let Some(place) = place.filter(|_| target.extension().is_some_and(|ending| ending == "md"))
            else {
                continue;
            };
            let page = std::fs::read_to_string(&target).expect("readable");
            let headings = page.lines().filter(|line| line.starts_with('#'));
            let found = headings.map(|line| anchor(line.trim_start_matches('#'))).any(|known| known == place);
            assert!(found, "{document} links to {link}, and there is no such heading");
        }
    }
    assert!(count > 50, "only {count} links found: the test no longer finds them");
}
