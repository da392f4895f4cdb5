//! Finds unknown keys and values of a wrong type, all at once: serde would report one mistake at a time. The defaults
//! contain every key, so everything is compared with them.

use std::collections::BTreeMap;

use config::{Value, ValueKind};

/// The values that can be used. All others are reported in `mistakes`.
pub(super) fn usable(
    defaults: &config::Config,
    merged: &config::Config,
    mistakes: &mut Vec<String>,
) -> Vec<(String, Value)> {
    let known = leaves(defaults);
    let mut usable = Vec::new();
    for (key, value) in leaves(merged) {
        match known.get(&key) {
            None => mistakes.push(unknown(&key, known.keys())),
            Some(default) => match mismatch(default, &value) {
                Some(wanted) => mistakes.push(format!("{key} must be {wanted}, not {:?}", value.to_string())),
                None => usable.push((key, value)),
            },
        }
    }
    usable
}

fn leaves(config: &config::Config) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    walk("", &config.cache, &mut found);
    found
}

fn walk(path: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
    if let ValueKind::Table(table) = &value.kind {
        for (name, value) in table {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            walk(&path, value, found);
        }
    } else {
        found.insert(path.to_owned(), value.clone());
    }
}

/// Values from the environment and from `--set` are strings, which may stand for numbers.
fn mismatch(default: &Value, value: &Value) -> Option<&'static str> {
    match &default.kind {
        ValueKind::I64(_) => value.clone().into_uint().is_err().then_some("a whole number"),
        ValueKind::Boolean(_) => value.clone().into_bool().is_err().then_some("true or false"),
        _ => value.clone().into_string().is_err().then_some("a text"),
    }
}

/// Sections that had another name in an older build. The old name is an error that gives the new one, because
/// silently ignoring a setting would be worse.
const RENAMED: [(&str, &str); 1] = [("upkeep", "maintenance")];

fn unknown<'a>(key: &str, known: impl Iterator<Item = &'a String>) -> String {
    for (old, new) in RENAMED {
        if let Some(rest) = key.strip_prefix(old).filter(|rest| rest.starts_with('.')) {
            return format!("{key} is now {new}{rest}");
        }
    }
    let nearest = known.min_by_key(|candidate| strsim::damerau_levenshtein(candidate, key));
    match nearest {
        Some(nearest) if strsim::damerau_levenshtein(nearest, key) <= 4 => {
            format!("{key} is not a key; did you mean {nearest}?")
        }
        _ => format!("{key} is not a key; config/default.toml has them all"),
    }
}
