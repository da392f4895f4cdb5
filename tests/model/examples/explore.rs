//! Explores one configuration with larger budgets: `cargo run --release -p doorbuster-model --example explore -- NAME
//! [BUDGET=N]... [threads=N]`. Without a name, all of them as the tests run them.

use doorbuster_model::check::run;
use doorbuster_model::config::Config;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().filter(|name| !name.contains('='));
    let chosen = Config::all().into_iter().filter(|config| name.is_none_or(|name| config.name.replace(' ', "-") == *name));
    for mut config in chosen {
        let mut threads = 1;
        for (key, value) in arguments.iter().filter_map(|argument| argument.split_once('=')) {
            let value: u8 = value.parse().expect("a number");
            match key {
                "threads" => threads = usize::from(value),
                key => assert!(config.set(key, value), "{key} is no budget"),
            }
        }
        let name = config.name;
        let found = run(config, threads);
        println!("{name}: {} states, depth {}, {:.1} s", found.states, found.depth, found.took.as_secs_f64());
        for (property, trace) in found.violated {
            println!("violated: {property}\n{trace}");
        }
    }
}
