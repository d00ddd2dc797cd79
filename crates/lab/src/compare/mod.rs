//! The engine of `leasehold compare`: it runs equal lock workloads on several stores, one after the other.
//!
//! ```
//! # #[tokio::main] async fn main() -> leasehold::Result<()> {
//! use leasehold_lab::compare::{Settings, Subject, compare};
//!
//! let subjects = [Subject::at("memory://", "memory://")];
//! let report = compare(&subjects, &Settings::glance(), |_| {}).await?;
//! println!("{}", report.table());
//! # Ok(()) }
//! ```
//!
//! Absolute numbers say as much about the machine as about the store. Each number is therefore also given as a ratio to the store's own
//! [round trip](Measured::round_trip), measured in the same run just before. [`Advice`] says in words which store, and which of fair and
//! fast, suits which need; it is derived from the numbers and from the stores' promises.
//!
//! [`compare()`] is all that does I/O. A [`Report`] becomes a [table](Report::table), [JSON](Report::json), or
//! [one HTML page](Report::page) that needs nothing else.

mod advice;
mod distribution;
mod holder;
mod page;
mod report;
mod run;
mod settings;
mod subject;
mod table;
mod workloads;

pub use advice::Advice;
pub use distribution::{Bin, Latency};
pub use holder::hold_until_killed;
pub use report::{
    Contended, Failure, Measured, Order, Recovery, Renewal, Report, Uncontended, Unreachable,
};
pub use run::{Progress, compare};
pub use settings::Settings;
pub use subject::{Reach, Subject};
