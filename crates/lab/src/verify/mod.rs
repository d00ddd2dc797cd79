//! The engine of `leasehold verify`: it measures what a server gives with the configuration that it has.
//!
//! The conformance suite runs against an existing server as a guest: it has clients only, and a namespace of its own that it removes
//! afterwards. Records that a store keeps for a while after a release stay. A guest cannot judge restarts, cut networks or counts of
//! requests; the report names them as not judged, with the reason. It also has [findings](Finding) about the server's settings, and the
//! leases that the server [granted](Granted).
//!
//! Cases judge by panicking. A program sets a silent panic hook before it calls [`verify()`].

mod findings;
mod harness;
mod identity;
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
pub use run::{Progress, check_servers, verify};
