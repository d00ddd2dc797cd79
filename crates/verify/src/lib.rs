//! What a server, configured as it is, really gives: the engine of `leasehold verify`.
//!
//! The conformance suite runs against an existing server, as a guest: with clients and nothing else, in a namespace of its
//! own that is removed afterwards: no name in it is in use, and what a store keeps for a while after any release stays. What a guest
//! cannot judge (restarts, cut networks, counts of requests) is reported as not judged, with the reason. Beside it stands what the server's settings mean for locks ([`Finding`]), and which leases it
//! really grants ([`Granted`]).
//!
//! Cases judge by panicking. A program sets a panic hook that says nothing before it calls [`verify`].

mod findings;
mod harness;
#[cfg(feature = "redis")]
mod members;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod report;
mod run;
mod servers;
mod sessions;
mod tcp;

pub use findings::{Finding, Severity};
pub use report::{Broken, Granted, Promise, Verification};
pub use run::{Progress, verify};
