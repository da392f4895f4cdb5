//! Where a request stands in a trace.

use std::fmt;

use serde::{Serialize, Serializer};

/// A span of a trace, as the header `traceparent` of [W3C Trace Context](https://www.w3.org/TR/trace-context/) names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace. Not zero.
    pub trace: u128,
    /// The span. Not zero.
    pub span: u64,
    /// Whether the trace is recorded.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Reads a `traceparent`. `None` if it is not one; its sender's trace then ends there, as the standard has it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let version = lower_hex(parts.next()?, 2)?;
        let trace = lower_hex(parts.next()?, 32)?;
        let span = lower_hex(parts.next()?, 16)?;
        let flags = lower_hex(parts.next()?, 2)?;
        // Later versions may have more parts; ff is none.
        let is_whole = version != 0 || parts.next().is_none();
        let is_valid = version != 0xff && trace != 0 && span != 0 && is_whole;
        let span = u64::try_from(span).ok()?;
        is_valid.then_some(Self { trace, span, is_sampled: flags & 1 == 1 })
    }

    /// The id of the trace, in 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }
}

fn lower_hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.len() == digits && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

impl Serialize for TraceContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_as_it_is_written() {
        let context = TraceContext::parse(HEADER).expect("valid");
        assert_eq!((context.span, context.is_sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(context.to_string(), HEADER);
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(!TraceContext::parse(&HEADER.replace("-01", "-02")).expect("valid").is_sampled);
        let later = format!("{}-more", HEADER.replacen("00", "01", 1));
        assert!(TraceContext::parse(&later).is_some(), "a later version");
    }

    #[test]
    fn what_is_no_traceparent_is_ignored() {
        let zero_trace = HEADER.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let zero_span = HEADER.replace("00f067aa0ba902b7", &"0".repeat(16));
        let upper = HEADER.to_uppercase();
        let (more, ff) = (format!("{HEADER}-more"), HEADER.replacen("00", "ff", 1));
        for bad in
            ["", "00", "00-1-1-01", &HEADER[..54], &zero_trace, &zero_span, &upper, &more, &ff, "é-é-é-é"]
        {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }
}
