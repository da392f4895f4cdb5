//! Which file uses which, read from the paths in the sources. Neither files nor folders may form a circle.
//!
//! A `mod.rs` is its folder's front door: it uses the folder's files and they use it, so it is left out. A name that
//! it re-exports leads to the file that defines it.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, without_comments};

/// A module, as its path below `crate`.
type Module = Vec<String>;

/// The modules of `src`, each with its text and the names that it re-exports.
struct Modules {
    texts: BTreeMap<Module, String>,
    /// For a module and a name that it re-exports: the path behind the name.
    exports: BTreeMap<(Module, String), Vec<String>>,
}

fn split(path: &str) -> Vec<String> {
    path.split("::").filter(|part| !part.is_empty()).map(|part| part.trim().to_owned()).collect()
}

/// The module of a file below `src`: `src/gate/mod.rs` is `gate`.
fn module_of(file: &str) -> Module {
    let path = file.strip_prefix("src/").expect("in src").trim_end_matches(".rs");
    let mut module: Module = path.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|name| name == "mod") {
        module.pop();
    }
    module
}

/// Lists every path of a use tree: `a::{b, c::d as e}` gives `a::b` and `a::c::d`.
fn flatten(tree: &str, prefix: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((before, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().expect("a part").trim();
        paths.push(format!("{prefix}{path}"));
        return;
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 && !inner[from..at].trim().is_empty() => {
                flatten(&inner[from..at], &format!("{prefix}{}", before.trim()), paths);
            }
            _ => {}
        }
        if c == ',' && depth == 0 {
            from = at + 1;
        }
    }
}

/// The paths that begin with `crate::`, `super::` or `self::`, in use trees and in the code.
fn paths_in(text: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back().unwrap_or(' ');
            if before.is_alphanumeric() || before == '_' || before == ':' {
                continue;
            }
            let plain = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let rest = &text[at..];
            let end = rest.find(|c| !plain(c)).unwrap_or(rest.len());
            if rest[end..].starts_with('{') {
                let end = rest.find(';').unwrap_or(rest.len());
                flatten(&rest[..end], "", &mut paths);
            } else {
                paths.push(rest[..end].to_owned());
            }
        }
    }
    paths
}

impl Modules {
    fn read() -> Self {
        let mut texts = BTreeMap::new();
        for (file, text) in files("src", "rs") {
            let code = without_comments(&text);
            // Names used only in a file's unit tests are not arrows of the product.
            let code = code.split("#[cfg(test)]\nmod tests").next().expect("a part").to_owned();
            texts.insert(module_of(&file), code);
        }
        let mut modules = Self { texts, exports: BTreeMap::new() };
        for (module, text) in &modules.texts {
            for export in text.split("pub use ").skip(1) {
                let tree = export.split(';').next().expect("a part");
                let mut paths = Vec::new();
                flatten(tree, "", &mut paths);
                for path in paths {
                    let name = path.rsplit("::").next().expect("a part").to_owned();
                    modules.exports.insert((module.clone(), name), split(&path));
                }
            }
        }
        modules
    }

    /// The module that a path in `from` leads to.
    fn resolve(&self, from: &Module, path: &[String]) -> Module {
        let mut at = from.clone();
        for (index, part) in path.iter().enumerate() {
            match part.as_str() {
                "crate" => at = Vec::new(),
                "super" => drop(at.pop()),
                "self" => {}
                name => {
                    let child: Module = at.iter().cloned().chain([name.to_owned()]).collect();
                    if self.texts.contains_key(&child) {
                        at = child;
                    } else if let Some(export) = self.exports.get(&(at.clone(), name.to_owned())) {
                        let rest = path[index + 1..].iter().cloned();
                        let onward: Vec<String> = export.iter().cloned().chain(rest).collect();
                        return self.resolve(&at, &onward);
                    } else {
                        return at;
                    }
                }
            }
        }
        at
    }

    /// Every arrow from a module to another one that it uses. Arrows of a folder's front door are left out.
    fn arrows(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let folders: BTreeSet<Module> =
            self.texts.keys().filter_map(|module| module.split_last()).map(|(_, up)| up.to_vec()).collect();
        let mut arrows: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (module, text) in self.texts.iter().filter(|(module, _)| !folders.contains(*module)) {
            for path in paths_in(text) {
                let to = self.resolve(module, &split(&path));
                if to != *module && !folders.contains(&to) {
                    arrows.entry(module.clone()).or_default().insert(to);
                }
            }
        }
        arrows
    }
}

/// A path from `from` back to itself, if there is one.
fn circle<'a>(from: &'a Module, arrows: &'a BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<&'a Module>> {
    let mut ways: Vec<Vec<&Module>> = vec![vec![from]];
    let mut seen: BTreeSet<&Module> = BTreeSet::new();
    while let Some(way) = ways.pop() {
        for to in arrows.get(*way.last().expect("never empty")).into_iter().flatten() {
            if to == from {
                return Some(way.into_iter().chain([to]).collect());
            }
            if seen.insert(to) {
                ways.push(way.iter().copied().chain([to]).collect());
            }
        }
    }
    None
}

fn show(way: &[&Module]) -> String {
    way.iter().map(|module| module.join("/")).collect::<Vec<_>>().join(" -> ")
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let arrows = Modules::read().arrows();
    assert!(arrows.len() > 100, "only {} files with arrows: the test no longer finds them", arrows.len());
    let circles: Vec<String> =
        arrows.keys().filter_map(|from| circle(from, &arrows)).map(|way| show(&way)).collect();
    assert!(circles.is_empty(), "circles:\n{}", circles.join("\n"));
}

/// Two folders that use each other are really one folder.
#[test]
fn no_folders_use_each_other_in_a_circle() {
    let arrows = Modules::read().arrows();
    let longest = arrows.keys().map(Vec::len).max().expect("files");
    for depth in 1..longest {
        // For two modules, the place where they diverge at this depth: a file, or a whole folder.
        let mut between: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, all) in &arrows {
            for to in all {
                let (a, b) = (&from[..from.len().min(depth)], &to[..to.len().min(depth)]);
                let siblings = a.len() == depth && b.len() == depth && a[..depth - 1] == b[..depth - 1];
                if siblings && a != b {
                    between.entry(a.to_vec()).or_default().insert(b.to_vec());
                }
            }
        }
        let circles: Vec<String> =
            between.keys().filter_map(|from| circle(from, &between)).map(|way| show(&way)).collect();
        assert!(circles.is_empty(), "circles:\n{}", circles.join("\n"));
    }
}

/// The checks above would pass on a tree that they cannot read.
#[test]
fn a_planted_circle_is_found() {
    let module = |name: &str| vec!["room".to_owned(), name.to_owned()];
    let mut texts = BTreeMap::from([(vec!["room".to_owned()], "pub use b::Thing;".to_owned())]);
    texts.insert(module("a"), "use super::Thing;".to_owned());
    texts.insert(module("b"), "use crate::room::{c::{self, deep}, Other};".to_owned());
    texts.insert(module("c"), "fn f() { super::a::g() }".to_owned());
    let exports = BTreeMap::from([((vec!["room".to_owned()], "Thing".to_owned()), split("b::Thing"))]);
    let arrows = Modules { texts, exports }.arrows();
    let from = module("a");
    let way = circle(&from, &arrows).expect("a circle");
    assert_eq!(show(&way), "room/a -> room/b -> room/c -> room/a");
}
