//! The rows of the table: one file for each.

mod alone;
mod clients;
mod fast;
mod gap;
mod held;
mod idle;
mod line;
mod names;

use crate::row::Row;

pub const ALL: [&dyn Row; 8] =
    [&alone::Alone, &names::Names, &gap::Gap, &fast::Fast, &held::Held, &line::Line, &clients::Clients, &idle::Idle];
