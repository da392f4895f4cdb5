//! Headers that a collector wants, such as the key of an account.

use hyper::HeaderMap;
use hyper::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue,
    TRANSFER_ENCODING, USER_AGENT,
};

/// Those that follow from the request itself.
const OWN: [HeaderName; 7] =
    [CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, USER_AGENT];

/// Why headers cannot be sent. Says the line and never the value, which is a secret.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadHeaders {
    /// A line is no header.
    #[error("line {0} is no header, such as `Authorization: Bearer …`")]
    NotAHeader(usize),
    /// The exporter sets it itself.
    #[error("line {line}: {name} is set by Doorbuster")]
    Own {
        /// From 1.
        line: usize,
        /// In lower case.
        name: HeaderName,
    },
}

/// Reads headers, one on each line: `Name: value`. Empty lines are left out. The values are marked as secrets, so that
/// nothing prints them.
pub fn read_headers(text: &str) -> Result<HeaderMap, BadHeaders> {
    let mut headers = HeaderMap::new();
    for (line, header) in (1..).zip(text.lines()).filter(|(_, header)| !header.trim().is_empty()) {
        let bad = || BadHeaders::NotAHeader(line);
        let (name, value) = header.split_once(':').ok_or_else(bad)?;
        let name: HeaderName = name.trim().parse().map_err(|_| bad())?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| bad())?;
        if value.is_empty() {
            return Err(bad());
        }
        if OWN.contains(&name) {
            return Err(BadHeaders::Own { line, name });
        }
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_from_lines_and_not_printed() {
        let headers =
            read_headers("Authorization: Basic YTpi\n\n x-scope-orgid:  shop \r\n").expect("headers");
        assert_eq!((headers["authorization"].as_bytes(), headers.len()), (&b"Basic YTpi"[..], 2));
        assert_eq!(headers["x-scope-orgid"].as_bytes(), b"shop");
        assert!(!format!("{headers:?}").contains("YTpi"), "{headers:?}");
        assert!(read_headers("").expect("none").is_empty());
    }

    #[test]
    fn mistakes_are_named_by_their_line_alone() {
        for (text, line) in [
            ("Bearer hunter2", 1),
            ("\nAuthorization hunter2", 2),
            ("two words: hunter2", 1),
            ("x: hunter\u{7}2", 1),
            ("x:", 1),
        ] {
            let wrong = read_headers(text).expect_err(text);
            assert_eq!(wrong, BadHeaders::NotAHeader(line), "{text:?}");
            assert!(!wrong.to_string().contains("hunter"), "{wrong}");
        }
        let wrong = read_headers("x: y\nContent-Type: text/plain").expect_err("its own");
        assert_eq!(wrong.to_string(), "line 2: content-type is set by Doorbuster");
    }
}
