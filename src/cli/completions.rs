//! `completions`: the script that lets a shell complete commands and options.

use clap_complete::Shell as Generator;

use super::ended::{Ended, Failed};
use super::output::print;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(super) fn run(args: &Args, mut command: clap::Command) -> Result<Ended, Failed> {
    let generator = match args.shell {
        Shell::Bash => Generator::Bash,
        Shell::Zsh => Generator::Zsh,
        Shell::Fish => Generator::Fish,
    };
    // Into memory first: the generator panics on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(generator, &mut command, "doorbuster", &mut script);
    print(&String::from_utf8_lossy(&script));
    Ok(Ended::Done)
}
