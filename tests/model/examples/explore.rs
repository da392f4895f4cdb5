//! Explores one configuration with larger budgets: `cargo run --release -p doorbuster-model --example explore -- NAME
//! [BUDGET=N]... [threads=N] [seconds=N]`. Without a name, all of them as the tests run them.

use std::time::Duration;

use doorbuster_model::check::run;
use doorbuster_model::config::Config;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().filter(|name| !name.contains('='));
    let chosen = Config::all()
        .into_iter()
        .filter(|config| name.is_none_or(|name| config.name.replace(' ', "-") == *name));
    for mut config in chosen {
        let (mut threads, mut seconds) = (1, 3_600);
        for (key, value) in arguments.iter().filter_map(|argument| argument.split_once('=')) {
            let value: u16 = value.parse().expect("a number");
            match key {
                "threads" => threads = usize::from(value),
                "seconds" => seconds = u64::from(value),
                key => {
                    assert!(config.set(key, u8::try_from(value).expect("below 256")), "{key} is no budget")
                }
            }
        }
        let name = config.name;
        let found = run(config, threads, Duration::from_secs(seconds));
        if !found.done {
            println!("{name}: not all states, because the time was over");
        }
        println!("{name}: {} states, depth {}, {:.1} s", found.states, found.depth, found.took.as_secs_f64());
        for (property, trace) in found.violated {
            println!("violated: {property}\n{trace}");
        }
    }
}
