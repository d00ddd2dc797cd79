//! Histories of lock clients under faults, and a checker that judges them.
//!
//! A *history* has the events of all processes of a test: which client asked for which lock, when
//! it was granted, until when its holder believed it valid, which writes a fenced resource
//! accepted, and which faults were made meanwhile. Each process appends [`Event`]s to a file of its
//! own ([`Recorder`]), one line of JSON for each. The [`Checker`] reads all of them once, in the
//! order of their times, and reports violations of an [`Invariant`].
//!
//! The history knows no store and no client library: any program in any language can write one. All
//! processes run on one machine, and their times come from one clock (`CLOCK_BOOTTIME` or
//! `CLOCK_MONOTONIC`).
//!
//! The checker is sound because of the side of a call on which an event is written:
//!
//! - [`Ok`](What::Ok) is written *after* an acquire has returned, [`Release`](What::Release)
//!   *before* the release is called. A window of the history is therefore never longer than the
//!   real one, and two windows that overlap did overlap.
//! - The time of [`Use`](What::Use) is read *before* the guard is asked, so the validity that it
//!   claims is one that the guard has claimed.
//! - An event is on disk before its process goes on, so that a killed process hides no grant.
//!
//! ```
//! use leasehold_chaos::{Checker, Event, Invariant, Mode, Policy, What};
//!
//! let mut checker = Checker::default();
//! for (op, t) in [(1, 10), (2, 30)] {
//!     let ask = What::Invoke { op, lock: "a".into(), mode: Mode::Exclusive, policy: Policy::Fair, deadline: None, owner: None };
//!     checker.event(&Event::new(t, op, ask));
//!     checker.event(&Event::new(t + 10, op, What::Ok { op, tok: op, valid: 1_000 }));
//! }
//! let report = checker.finish();
//! assert_eq!(report.violations[0].invariant(), Invariant::I1);
//! ```

mod check;
mod event;
mod history;
mod order;
mod report;
mod rules;
mod timeline;

pub use check::Checker;
pub use event::{Breaks, Event, Limits, Mode, Policy, What};
pub use history::{BadHistory, History, Recorder};
pub use order::{Disorder, Ordered, order};
pub use report::{Figures, Report, Violation};
pub use rules::{Invariant, Rule};
pub use timeline::timeline;
