//! Internal: what the stores of Leasehold with servers share about reaching them. Use `leasehold`
//! with the feature of a store; the stores re-export the types of their settings.
//!
//! - [`Address`] and [`Host`]: the URL of a store.
//! - [`parameters`]: the parameters of all URLs, and the part of each that may be shown.
//! - [`Credentials`]: a user and a password that change.
//! - [`Tls`]: TLS, with the feature `tls`, `tls-ring` or `tls-no-provider`.
//! - [`race`]: one connection to several servers of which any will do.
//!
//! Nothing here knows a lock or a protocol of a server.

use leasehold_core::{Error, ErrorKind};

mod address;
mod credentials;
#[cfg(not(feature = "tls-no-provider"))]
mod no_tls;
pub mod parameters;
mod race;
#[cfg(feature = "tls-no-provider")]
pub mod tls;

pub use crate::address::{Address, Host, may_be_secret};
pub use crate::credentials::Credentials;
#[cfg(not(feature = "tls-no-provider"))]
pub use crate::no_tls::Tls;
pub use crate::race::race;
#[cfg(feature = "tls-no-provider")]
pub use crate::tls::Tls;

/// The part of a server's certificate that a client over TLS verifies. A user who chooses less than
/// all of it is warned by the store.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Verified {
    /// A trusted CA has signed it, and it is for the server's name.
    #[default]
    Name,
    /// A trusted CA has signed it. It may be for any name.
    Ca,
    /// Nothing: whoever is in between may answer in the server's place.
    Nothing,
}

/// The error of a store that is asked for TLS in a build without its feature for it. This crate may
/// have that feature all the same, for another store of the program.
pub fn tls_is_off() -> Error {
    let what = "TLS needs the feature \"tls\" (or \"tls-ring\", or \"tls-no-provider\"), which is off in this build";
    Error::new(ErrorKind::Unsupported, what)
}
