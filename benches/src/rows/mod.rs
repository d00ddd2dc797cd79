//! The rows of the table: one file for each.

mod alone;
mod clients;
mod command;
mod fast;
mod flat;
mod gap;
mod held;
mod idle;
mod line;
mod many;
mod names;
mod processes;
mod refused;
mod touched;

use crate::row::Row;

/// Those that take long are last.
pub const ALL: [&dyn Row; 14] = [
    &alone::Alone,
    &names::Names,
    &refused::Refused,
    &gap::Gap,
    &fast::Fast,
    &processes::Processes,
    &command::Command,
    &line::Line,
    &clients::Clients,
    &many::Many,
    &flat::Flat,
    &held::Held,
    &idle::Idle,
    &touched::Touched,
];
