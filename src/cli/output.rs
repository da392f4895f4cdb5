//! `--output`: for people, or for programs.

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Output {
    /// text for people, json for programs.
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

impl Output {
    pub(super) fn is_json(&self) -> bool {
        self.output == "json"
    }
}
