//! Negative controls: plants known mistakes in trees of the sources, one at a time in each, and runs the test that must
//! catch each one. A test that misses its mistake proves nothing.
//!
//! `make controls` runs them all, `cargo test --test controls -- NAME` runs one.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
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
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let trees: Vec<Tree> =
        (0..cores.min(controls.len())).map(|nth| Tree::make(root, folder.path(), nth)).collect();

    let mut filters: Vec<&str> = controls.iter().map(|control| control.caught_by.as_str()).collect();
    filters.sort_unstable();
    filters.dedup();
    println!("without a mistake: {} tests", filters.len());
    let build = |tree: &Tree| tree.builds();
    let built = on_each(&trees, build).into_iter().all(|built| built);
    if !built || !trees[0].passes(&filters) {
        println!("the unchanged copy does not pass, so no control can be judged");
        return ExitCode::FAILURE;
    }
    // A test waits more than it works, so each copy takes the next control while the others run theirs.
    let next = AtomicUsize::new(0);
    let plant = |tree: &Tree| {
        let mine = std::iter::from_fn(|| controls.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.filter(|control| !tree.catches(control)).count()
    };
    let missed: usize = on_each(&trees, plant).into_iter().sum();
    println!("{} caught, {missed} missed", controls.len() - missed);
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What `work` returns for each tree; they work at the same time.
fn on_each<T: Send>(trees: &[Tree], work: impl Fn(&Tree) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let started: Vec<_> = trees.iter().map(|tree| scope.spawn(|| work(tree))).collect();
        started.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// A copy of the sources, in which one mistake at a time is planted.
struct Tree {
    sources: PathBuf,
    /// Its build folder. Cargo identifies a package by its path in the workspace, and would take an artefact of the copy
    /// for one of the project, or of another copy.
    target: PathBuf,
}

impl Tree {
    fn make(root: &Path, folder: &Path, nth: usize) -> Self {
        let sources = folder.join(nth.to_string()).join("doorbuster");
        for name in
            ["Cargo.toml", "Cargo.lock", "src", "lua", "migrations", "config", "docs", "tests", "docker"]
        {
            copy_all(&root.join(name), &sources.join(name));
        }
        Self { sources, target: root.join("target/controls").join(nth.to_string()) }
    }

    /// Plants the mistake, runs its test, restores the copy and prints the verdict.
    fn catches(&self, control: &Control) -> bool {
        let started = Instant::now();
        let mut before = Vec::new();
        for change in &control.changes {
            let path = self.sources.join(&change.file);
            let text = std::fs::read_to_string(&path).expect("a file of the project");
            assert_eq!(text.matches(&change.from).count(), 1, "{}: {}", control.name, change.file);
            std::fs::write(&path, text.replacen(&change.from, &change.to, 1)).expect("written");
            before.push((path, text));
        }
        let (verdict, why) =
            if self.builds() { self.judge(&control.caught_by) } else { ("DOES NOT BUILD", String::new()) };
        println!(
            "{verdict:<8} {:<28} {:>4.0} s  {}\n{:42} by {}\n{:42} {why}",
            control.name,
            started.elapsed().as_secs_f64(),
            control.mistake,
            "",
            control.caught_by,
            "",
        );
        // Restored from the copy, because the project may have changed meanwhile.
        for (path, text) in before.into_iter().rev() {
            std::fs::write(path, text).expect("restored");
        }
        verdict == "caught"
    }

    fn cargo(&self) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .current_dir(&self.sources)
            .args(["test", "--quiet", "--test", "it", "--target-dir"])
            .arg(&self.target);
        cargo.stdin(Stdio::null());
        cargo
    }

    fn builds(&self) -> bool {
        let output = self.cargo().arg("--no-run").output().expect("cargo runs");
        if !output.status.success() {
            println!("{}", String::from_utf8_lossy(&output.stderr));
        }
        output.status.success()
    }

    fn passes(&self, tests: &[&str]) -> bool {
        let mut cargo = self.cargo();
        cargo.args(["--", "--exact", "--test-threads=4"]).args(tests);
        cargo.stderr(Stdio::null()).status().expect("cargo runs").success()
    }

    /// A mistake is caught only if this very test fails. A test that could not run does not count. Returns also what it
    /// failed with.
    fn judge(&self, test: &str) -> (&'static str, String) {
        let output = self.cargo().args(["--", "--exact", test]).output().expect("cargo runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let failed = text.contains(&format!("---- {test} stdout ----")) && text.contains("1 failed");
        match (output.status.success(), failed) {
            (true, _) => ("MISSED", String::new()),
            (false, true) => {
                let why =
                    text.lines().skip_while(|line| !line.contains("panicked at")).nth(1).unwrap_or_default();
                ("caught", why.to_owned())
            }
            (false, false) => ("NOT RUN", String::new()),
        }
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
