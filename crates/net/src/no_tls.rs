//! What stores use in place of TLS in a build without the feature `tls`.

use leasehold_core::{Error, ErrorKind, Result};

use crate::Address;

/// The settings of TLS: there are none, because the feature `tls` is off in this build.
#[derive(Clone, Debug)]
pub enum Tls {}

impl Tls {
    /// Takes nothing out of a URL in plain text.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for a URL that asks for TLS.
    pub fn from_address(address: &mut Address) -> Result<Option<Tls>> {
        match address.tls {
            true => Err(off()),
            false => Ok(None),
        }
    }

    /// Makes no settings of these files.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported), always.
    pub fn from_files(_words: [&str; 3], _files: [Option<String>; 3]) -> Result<Tls> {
        Err(off())
    }
}

fn off() -> Error {
    let what = "TLS needs the feature \"tls\", which is off in this build";
    Error::new(ErrorKind::Unsupported, what)
}
