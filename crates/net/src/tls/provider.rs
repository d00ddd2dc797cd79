//! The provider of cryptography: the one that the program has installed, or else one that this build brings. Nothing is left to
//! rustls, whose own choice panics in a program that contains two providers or none.

use std::sync::Arc;

use leasehold_core::{Error, ErrorKind, Result};
use rustls::crypto::CryptoProvider;

/// The providers that this build brings. The first one is used: aws-lc-rs knows more algorithms.
const BROUGHT: &[fn() -> CryptoProvider] = &[
    #[cfg(feature = "tls-aws-lc")]
    rustls::crypto::aws_lc_rs::default_provider,
    #[cfg(feature = "tls-ring")]
    rustls::crypto::ring::default_provider,
];

/// The provider for a connection that is made now.
pub(super) fn provider() -> Result<Arc<CryptoProvider>> {
    chosen(CryptoProvider::get_default(), BROUGHT)
}

/// Makes the provider that this build brings that of the whole program, unless the program has installed one. This is for a client
/// crate that cannot be told which one to use, and panics if there are two.
///
/// # Errors
///
/// [`Unsupported`](ErrorKind::Unsupported) if there is none.
pub fn install_provider() -> Result<()> {
    if CryptoProvider::get_default().is_none() {
        let brought = chosen(None, BROUGHT)?;
        // If another thread was faster, the program has a provider now.
        let _ = CryptoProvider::clone(&brought).install_default();
    }
    Ok(())
}

fn chosen(
    installed: Option<&Arc<CryptoProvider>>,
    brought: &[fn() -> CryptoProvider],
) -> Result<Arc<CryptoProvider>> {
    match (installed, brought.first()) {
        (Some(installed), _) => Ok(installed.clone()),
        (None, Some(brought)) => Ok(Arc::new(brought())),
        (None, None) => Err(Error::new(ErrorKind::Unsupported, NONE)),
    }
}

const NONE: &str = "TLS has no provider of cryptography: this build brings none, and the program has installed none for rustls 0.23; \
     turn on the feature \"tls-aws-lc\" or \"tls-ring\", or call CryptoProvider::install_default before connecting";

#[cfg(test)]
mod tests {
    use rustls::crypto::{aws_lc_rs, ring};

    use super::*;

    /// The algorithms by which a provider can be told from another one.
    fn algorithms(provider: &CryptoProvider) -> String {
        format!("{:?}", provider.signature_verification_algorithms)
    }

    #[test]
    fn the_program_decides_and_else_the_build() {
        let [aws, of_ring] = [aws_lc_rs::default_provider, ring::default_provider]
            .map(|it| it as fn() -> CryptoProvider);
        assert_ne!(algorithms(&aws()), algorithms(&of_ring()));
        let installed = Arc::new(of_ring());
        for brought in [&[aws][..], &[of_ring], &[aws, of_ring], &[]] {
            assert!(Arc::ptr_eq(
                &chosen(Some(&installed), brought).unwrap(),
                &installed
            ));
        }
        for (brought, expected) in [(&[aws][..], aws), (&[of_ring], of_ring), (BROUGHT, aws)] {
            let chosen = chosen(None, brought).unwrap();
            assert_eq!(algorithms(&chosen), algorithms(&expected()));
        }
        let error = chosen(None, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for word in ["\"tls-aws-lc\"", "\"tls-ring\"", "install_default"] {
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
