//! One word for one thing: words that the glossary rejects are not used.

use crate::structure::files;

/// The unwanted words from the glossary's third column, each with the term to use instead.
fn unwanted(glossary: &str) -> Vec<(String, String)> {
    let rows = glossary.lines().filter(|line| line.starts_with("| ")).skip(2);
    let cells = rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    cells
        .flat_map(|cells| {
            let words = cells.last().expect("a cell").split('`').skip(1).step_by(2);
            words.map(|word| (word.to_owned(), cells[0].to_owned())).collect::<Vec<_>>()
        })
        .collect()
}

/// Removes text in backticks and single quoted words: these may be names in other systems.
fn without_names(line: &str) -> String {
    let spoken: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    let mut kept = String::new();
    for (index, part) in spoken.split('"').enumerate() {
        let name = index % 2 == 1 && part.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c));
        kept.push_str(if name { " " } else { part });
        kept.push('"');
    }
    kept
}

/// Whether the text contains the word, or this sequence of words. `told_epoch` does not contain `told`.
fn names(text: &str, word: &str) -> bool {
    let part_of_a_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !part_of_a_word(before.chars().next_back()) && !part_of_a_word(after.chars().next())
    })
}

/// An unwanted word with a capital or an underscore is a name in the code; any other is an ordinary word.
fn uses(text: &str, word: &str, is_prose: bool) -> Option<usize> {
    let is_name = word.contains(|c: char| c.is_uppercase() || c == '_');
    let found = |line: &str| match is_name {
        true => !is_prose && names(line, word),
        false => names(&line.to_lowercase(), word),
    };
    text.lines().position(|line| found(&without_names(line))).map(|line| line + 1)
}

#[test]
fn every_word_of_the_code_and_the_documents_is_one_that_the_glossary_wants() {
    let unwanted = unwanted(&crate::documents::read("docs/glossary.md"));
    assert!(unwanted.len() > 30, "only {} unwanted words: the test no longer finds them", unwanted.len());
    let folders =
        [("src", "rs"), ("tests/it", "rs"), ("migrations", "rs"), ("lua", "lua"), ("config", "toml")];
    // This file contains unwanted words on purpose.
    let code = folders
        .iter()
        .flat_map(|(folder, ending)| files(folder, ending))
        .filter(|(file, _)| file != "tests/it/glossary.rs");
    let pages = crate::documents::pages().into_iter().filter(|page| !page.ends_with("glossary.md"));
    let prose = pages.map(|page| (page.clone(), crate::documents::read(&page)));
    let texts: Vec<(bool, String, String)> = code
        .map(|(file, text)| (false, file, text))
        .chain(prose.map(|(page, text)| (true, page, text)))
        .collect();
    let mut trouble = Vec::new();
    for (is_prose, file, text) in &texts {
        for (word, term) in &unwanted {
            if let Some(line) = uses(text, word, *is_prose) {
                trouble.push(format!("{file}:{line}: {word:?}; the glossary has {term:?}"));
            }
        }
    }
    assert!(trouble.is_empty(), "{}", trouble.join("\n"));
}

#[test]
fn an_unwanted_word_is_found_where_it_is_one() {
    let glossary = "| term | meaning | not |\n| --- | --- | --- |\n| report | Say it. | `told` |\n| terms | All. | `Rules`, `mends` |\n";
    let words: Vec<String> = unwanted(glossary).into_iter().map(|(word, _)| word).collect();
    assert_eq!(words, ["told", "Rules", "mends"]);
    assert_eq!(uses("fine\nA buyer is Told.", "told", true), Some(2));
    assert_eq!(uses("row.told_epoch, `told` and \"told\"", "told", false), None);
    assert_eq!(uses("struct Rules;", "Rules", false), Some(1));
    assert_eq!(uses("The rules; Rules of a club", "Rules", true), None);
    assert_eq!(uses("\"it mends what differs\"", "mends", false), Some(1));
}
