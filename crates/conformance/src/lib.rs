//! The conformance suite of Leasehold: one table of named cases for every store, ours or yours.
//! Each case cites the promise that it judges.
//!
//! A store's test is a [`Harness`] (how to get a client, and what can be done to the server) and
//! one call of `main`, which is there with the default feature `runner`; a program that judges a
//! server does without it, and calls [`verdicts`]. A store cannot pick its cases: a case whose
//! [needs](Need) a harness cannot meet is reported as ignored, with the reason, and counted. Each
//! case runs bare and behind a decorator that loses replies, fails and delays ([`faulty`]).
//!
//! The promises P1–P10 are those of `docs/guarantees.md`, the clauses S1–S18 those of
//! [`Backend`](leasehold_core::backend::Backend) and [`TokenFloor`](leasehold_core::backend::TokenFloor).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a suite judges by panicking"
)]
#![allow(
    clippy::print_stdout,
    reason = "the matrix of what was proved is printed"
)]

pub mod case;
mod cases;
pub mod context;
pub mod faulty;
pub mod harness;
#[cfg(feature = "runner")]
mod matrix;
pub mod model;
mod run;
#[cfg(feature = "runner")]
mod runner;
mod verdict;

pub use case::{CASES, Case};
pub use context::{TestContext, Variant};
pub use harness::{Budget, Capabilities, Detour, FencedResource, Harness, Link, Need};
pub use run::{judge, judge_apart};
#[cfg(feature = "runner")]
pub use runner::{Setup, main, main_of};
pub use verdict::{Outcome, Verdict, verdicts};

/// Compiles the code of the recipe for a new store.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/adding-a-store.md")]
struct Recipe;
