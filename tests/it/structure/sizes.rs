//! Limits on what has to be read in one sitting: the size of files and functions.

use super::{files, without_comments};

const LINES_OF_A_FILE: usize = 400;
const LINES_OF_A_FUNCTION: usize = 60;
/// The most parameters of a function, including `self`.
const PARAMETERS: usize = 5;

/// A function of a formatted file: its name, lines, and number of parameters.
struct Function {
    name: String,
    lines: usize,
    parameters: usize,
}

/// The functions of a file formatted by rustfmt: a function ends at the brace with the same indentation as its start.
fn functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let words = ["pub ", "pub(super) ", "pub(crate) ", "pub(in crate::store) ", "const ", "async "];
        let mut rest = code;
        while let Some(shorter) = words.iter().find_map(|word| rest.strip_prefix(word)) {
            rest = shorter;
        }
        let Some(signature) = rest.strip_prefix("fn ") else { continue };
        let name: String = signature.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let indent = &line[..line.len() - code.len()];
        let end = lines[at..].iter().position(|line| {
            line.strip_prefix(indent)
                .is_some_and(|line| line == "}" || line.ends_with(';') && !line.starts_with(' '))
                || line.ends_with('}') && line.starts_with(&format!("{indent}{code}"))
        });
        let parameters = parameters(&lines[at..].join("\n"));
        found.push(Function { name, lines: end.map_or(1, |end| end + 1), parameters });
    }
    found
}

/// The number of parameters of the function whose text begins here.
fn parameters(text: &str) -> usize {
    let text = &text[text.find("fn ").expect("a function")..];
    let name = text.find(['(', '<']).expect("parameters");
    let (mut angle, mut depth, mut count, mut written) = (0_i32, 0_i32, 0, false);
    for (at, c) in text[name..].char_indices() {
        let arrow = text[..name + at].ends_with('-') || text[..name + at].ends_with('=');
        match c {
            '<' => angle += 1,
            '>' if !arrow => angle -= 1,
            '(' | '[' | '{' if angle == 0 => depth += 1,
            ')' | ']' | '}' if angle == 0 => {
                depth -= 1;
                if depth == 0 {
                    return count + usize::from(written);
                }
            }
            ',' if depth == 1 && angle == 0 => {
                count += usize::from(std::mem::take(&mut written));
            }
            c if depth >= 1 && !c.is_whitespace() => written = true,
            _ => {}
        }
    }
    count
}

#[test]
fn no_file_is_longer_than_one_reads_in_a_sitting() {
    for (folder, ending) in [("src", "rs"), ("migrations", "rs"), ("tests", "rs"), ("lua", "lua")] {
        for (file, text) in files(folder, ending) {
            let lines = text.lines().count();
            assert!(lines <= LINES_OF_A_FILE, "{file} has {lines} lines; {LINES_OF_A_FILE} are the most");
        }
    }
}

#[test]
fn no_function_is_too_long_or_takes_too_much() {
    let (mut count, mut trouble) = (0, Vec::new());
    for (file, text) in files("src", "rs").into_iter().chain(files("migrations", "rs")) {
        for Function { name, lines, parameters } in functions(&text) {
            count += 1;
            if lines > LINES_OF_A_FUNCTION {
                trouble.push(format!("{file}: {name} has {lines} lines, more than {LINES_OF_A_FUNCTION}"));
            }
            if parameters > PARAMETERS {
                trouble.push(format!("{file}: {name} takes {parameters} parameters, more than {PARAMETERS}"));
            }
        }
    }
    assert!(count > 1_000, "only {count} functions: the test no longer finds them");
    assert!(trouble.is_empty(), "{}", trouble.join("\n"));
}

/// Each seam has its own error type, with a variant for each action that the caller can take.
#[test]
fn no_error_is_a_text() {
    for (file, text) in files("src", "rs") {
        let code = without_comments(&text).split_whitespace().collect::<Vec<_>>().join(" ");
        for signature in code.split("fn ").skip(1).filter_map(|code| code.split(['{', ';']).next()) {
            let name = signature.split(['(', '<']).next().expect("a name");
            let answer = signature.rsplit_once("-> ").map_or("", |(_, answer)| answer);
            assert!(!answer.contains(", String>"), "{file}: the error of {name} is a text");
        }
    }
}

#[test]
fn a_function_is_measured_as_it_stands() {
    let text = "impl A {\n    pub async fn one<F: Fn(u8) -> u8>(\n        &self,\n        at: (u8, u8),\n    ) -> u8 {\n        \
                let x = 1;\n        x\n    }\n\n    fn two() {}\n}\n\nfn three(a: &[u8; 3], b: Vec<(u8, u8)>) {\n    a;\n}\n";
    let found: Vec<(String, usize, usize)> = functions(text)
        .into_iter()
        .map(|function| (function.name, function.lines, function.parameters))
        .collect();
    let expected = [("one", 7, 2), ("two", 1, 0), ("three", 3, 2)];
    assert_eq!(found, expected.map(|(name, lines, parameters)| (name.to_owned(), lines, parameters)));
}
