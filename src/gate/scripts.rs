//! The Lua files, compiled into the binary: a process and its scripts are always of one version.

use redis::Script;

pub(super) struct Scripts {
    pub(super) admit: Script,
    pub(super) load: Script,
    pub(super) state: Script,
    pub(super) describe: Script,
    pub(super) mark: Script,
    pub(super) settle: Script,
    pub(super) due: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            admit: Script::new(include_str!("../../lua/admit.lua")),
            load: Script::new(include_str!("../../lua/load.lua")),
            state: Script::new(include_str!("../../lua/state.lua")),
            describe: Script::new(include_str!("../../lua/describe.lua")),
            mark: Script::new(include_str!("../../lua/mark.lua")),
            settle: Script::new(include_str!("../../lua/settle.lua")),
            due: Script::new(include_str!("../../lua/due.lua")),
        }
    }
}
