//! The laboratory of the command: `leasehold compare` and `leasehold verify`.
//!
//! [`compare`](mod@compare) measures several stores side by side. [`verify`](mod@verify) judges what one server gives with the
//! configuration that it has.

pub mod compare;
#[doc(hidden)]
pub mod measure;
#[doc(hidden)]
pub mod plot;
pub mod verify;
