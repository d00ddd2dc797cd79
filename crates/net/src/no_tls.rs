//! What stores use in place of TLS in a build without a feature for it.

use leasehold_core::Result;

use crate::{Address, Verified, tls_is_off};

/// The settings of TLS: there are none, because no feature for it is on in this build.
#[derive(Clone, Debug)]
pub enum Tls {}

impl Tls {
    /// Takes nothing out of a URL in plain text.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](leasehold_core::ErrorKind::Unsupported) for a URL that asks for TLS.
    pub fn from_address(address: &mut Address, _speaks_tls: bool) -> Result<Option<Tls>> {
        match address.tls {
            true => Err(tls_is_off()),
            false => Ok(None),
        }
    }

    /// There are no settings that could verify less.
    #[must_use]
    pub fn verifying(self, _what: Verified) -> Tls {
        match self {}
    }

    /// There are no settings that could verify less.
    pub fn verified(&self) -> Verified {
        match *self {}
    }

    /// There are no settings that could name a file.
    pub fn has_ca_file(&self) -> bool {
        match *self {}
    }

    /// There are no settings that could name a server.
    pub fn has_server_name(&self) -> bool {
        match *self {}
    }

    /// Makes no settings of these files.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](leasehold_core::ErrorKind::Unsupported), always.
    pub fn from_files(_words: [&str; 3], _files: [Option<String>; 3]) -> Result<Tls> {
        Err(tls_is_off())
    }
}
