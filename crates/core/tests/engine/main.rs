//! Core in an engine test: scripted stores and virtual time. Nothing here waits for real time, except where a test says why.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test binary of its own"
)]

mod acquiring;
mod at_once;
mod behind;
mod cancelling;
mod closing;
mod doubt;
mod downgrade;
mod granted_less;
mod in_flight;
mod keeping;
mod lapsing;
mod leaving;
mod load;
mod losing;
mod many;
mod nested;
mod once;
mod runtimes;
mod scale;
mod script;
mod several;
mod shortened;
mod surface;
mod thin;
mod turns;
mod untaken;
mod watching;
