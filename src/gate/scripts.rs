//! The Lua files, compiled into the binary, so that a process and its scripts always have the same version.

use crate::link::Script;

pub(super) struct Scripts {
    pub(super) admit: Script,
    /// The same script for a full Redis: see [`Scripts::new`].
    pub(super) admit_full: Script,
    pub(super) freeze: Script,
    pub(super) load: Script,
    pub(super) move_sale: Script,
    pub(super) set_terms: Script,
    pub(super) restock: Script,
    pub(super) unload: Script,
    pub(super) describe: Script,
    pub(super) mark: Script,
    pub(super) settle: Script,
    pub(super) witness: Script,
    pub(super) remember_place: Script,
    pub(super) claim_due: Script,
    pub(super) adopt: Script,
    pub(super) adjust: Script,
    pub(super) rebuild_begin: Script,
    pub(super) rebuild_flight: Script,
    pub(super) rebuild_load: Script,
}

/// The beginning of every script that takes a sale's number, without its first line.
const FREEZE_IF_BEHIND: &str =
    include_str!("../../lua/include/freeze_if_behind.lua").split_at("#!lua\n".len()).1;

/// What remembers the database's place, without its first line. It needs the names that the check defines.
const WITNESS_PLACE: &str = include_str!("../../lua/include/witness_place.lua").split_at("#!lua\n".len()).1;

/// What tells a script that it runs too late, without its first line.
const IS_LATE: &str = include_str!("../../lua/include/is_late.lua").split_at("#!lua\n".len()).1;

/// Inserts the check after the script's first line, the one with its flags, which must stay first.
fn after_freeze_if_behind(script: &str) -> Script {
    let (first, rest) = script.split_once('\n').unwrap_or((script, ""));
    Script::new(format!("{first}\n{FREEZE_IF_BEHIND}\n{rest}"))
}

/// The same, for a script that must run in time.
fn in_time(script: &str) -> Script {
    after_freeze_if_behind(&with_is_late(script))
}

/// A script that can tell whether it runs too late.
fn with_is_late(script: &str) -> String {
    let (first, rest) = script.split_once('\n').unwrap_or((script, ""));
    format!("{first}\n{IS_LATE}\n{rest}")
}

/// The same with the database's place.
fn after_witness_place(script: &str) -> Script {
    let (first, rest) = script.split_once('\n').unwrap_or((script, ""));
    Script::new(format!("{first}\n{FREEZE_IF_BEHIND}\n{WITNESS_PLACE}\n{rest}"))
}

impl Scripts {
    /// `prefix` makes the admission script unique to the installation. A Redis that knows the script has been
    /// compared by this installation since it started.
    pub(super) fn new(prefix: &str) -> Self {
        let admit = format!("{}\n-- of {prefix}\n", include_str!("../../lua/gate/admit.lua"));
        // A full Redis refuses scripts that may write. Called with an outbox bound of zero, this one writes
        // nothing: it answers repeats and admits nobody.
        let admit_full = admit.replacen("#!lua\n", "#!lua flags=allow-oom\n", 1);
        Self {
            admit: Script::new(admit),
            admit_full: Script::new(admit_full),
            freeze: after_freeze_if_behind(include_str!("../../lua/gate/freeze.lua")),
            load: Script::new(include_str!("../../lua/gate/load.lua")),
            move_sale: in_time(include_str!("../../lua/gate/move_sale.lua")),
            set_terms: after_freeze_if_behind(include_str!("../../lua/gate/set_terms.lua")),
            restock: after_freeze_if_behind(include_str!("../../lua/gate/restock.lua")),
            unload: Script::new(include_str!("../../lua/gate/unload.lua")),
            describe: Script::new(include_str!("../../lua/gate/describe.lua")),
            mark: Script::new(include_str!("../../lua/gate/mark.lua")),
            settle: after_witness_place(&with_is_late(include_str!("../../lua/gate/settle.lua"))),
            witness: after_witness_place(include_str!("../../lua/gate/witness.lua")),
            remember_place: Script::new(include_str!("../../lua/gate/remember_place.lua")),
            claim_due: Script::new(include_str!("../../lua/gate/claim_due.lua")),
            adopt: in_time(include_str!("../../lua/gate/adopt.lua")),
            adjust: Script::new(include_str!("../../lua/gate/adjust.lua")),
            rebuild_begin: Script::new(include_str!("../../lua/gate/rebuild_begin.lua")),
            rebuild_flight: Script::new(include_str!("../../lua/gate/rebuild_flight.lua")),
            rebuild_load: Script::new(include_str!("../../lua/gate/rebuild_load.lua")),
        }
    }
}
