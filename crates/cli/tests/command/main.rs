//! The command, driven through its binary on private servers. One target of many modules, so that it is linked once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests and their helpers"
)]

#[macro_use]
mod support;

// Tests begin in the order of their names: these take longest.
mod a_guest;
mod bridge_seal;
mod compare;
mod costs;
mod descendants;
mod faults;
mod file;
mod inspect;
mod leases;
mod limits;
mod messages;
mod nested;
mod once;
mod outage;
mod output;
mod postgres;
mod redlock;
mod run;
mod signals;
mod store_file;
mod systemd;
mod terminal;
mod users;
