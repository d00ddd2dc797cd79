//! Cases about TLS that every store's tests share under common names. Each refusal is a typed error
//! in time that names the server and the remedy, shows no secret, and leaves nothing behind.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]
#![allow(missing_docs, reason = "each case says by its name what it judges")]

use std::{env, fs, process::Command, thread};

use leasehold_core::{
    ErrorKind::{self, Denied, Invalid, Unavailable},
    Result, Store,
};
use rustls::{
    Error as TlsError,
    crypto::{
        CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms,
    },
    pki_types::PrivateKeyDer,
    sign::SigningKey,
};

use crate::{
    Certificates, KeyFiles, TlsPort,
    verbs::{TTL, within},
};

/// The servers of one store, each with a plain port and a TLS port.
#[allow(async_fn_in_trait, reason = "a test waits for them where it is")]
pub trait TlsStore: Sized {
    /// The scheme without TLS.
    const SCHEME: &'static str;
    /// The part of a URL before the hosts. A password has to be `s3cret`.
    const USER: &'static str;
    /// The part of a URL after the hosts.
    const PATH: &'static str;
    /// The client crate makes the connections, and takes the program's default provider of cryptography.
    const NEEDS_DEFAULT_PROVIDER: bool = false;

    /// The scheme with TLS.
    fn secure_scheme() -> String {
        format!("{}s", Self::SCHEME)
    }

    /// Starts the servers, with TLS at this port and the next free ones.
    async fn start(port: &TlsPort) -> Self;

    /// The servers' plain addresses, and their TLS addresses: `host:port`.
    fn addrs(&self) -> (Vec<String>, Vec<String>);

    async fn connect(url: &str) -> Result<Store>;

    /// Waits until no client is connected, or fails if something of one is left.
    async fn nothing_is_left(&self);
}

/// Servers with a certificate, the CA that signed it, and another CA.
struct World<S> {
    authority: Certificates,
    stranger: Certificates,
    store: S,
}

impl<S: TlsStore> World<S> {
    async fn start(mutual: bool, files: impl FnOnce(&Certificates) -> KeyFiles) -> Self {
        let authority = Certificates::new().unwrap();
        let stranger = Certificates::new().unwrap();
        let port = TlsPort {
            files: files(&authority),
            mutual,
            ..TlsPort::new(&authority).unwrap()
        };
        Self {
            store: S::start(&port).await,
            authority,
            stranger,
        }
    }

    async fn plain_clients() -> Self {
        Self::start(false, |authority| authority.issue("server").unwrap()).await
    }

    async fn mutual() -> Self {
        Self::start(true, |authority| authority.issue("server").unwrap()).await
    }

    fn ca(&self) -> String {
        ca(&self.authority)
    }

    fn url(&self, words: &str) -> String {
        url::<S>(&S::secure_scheme(), &self.store.addrs().1, words)
    }

    async fn works(&self, words: &str) {
        works(S::connect(&self.url(words)).await.unwrap()).await;
    }

    /// Checks that a connection to the TLS ports is refused for this reason. The error names the
    /// first of them unless the mistake is in the URL's options.
    async fn refused(&self, words: &str, kind: ErrorKind, says: &[&str]) {
        let at = if kind == Invalid {
            String::new()
        } else {
            self.store.addrs().1[0].clone()
        };
        self.refused_at(&self.url(words), kind, &[says, &[&*at]].concat())
            .await;
    }

    async fn refused_at(&self, url: &str, kind: ErrorKind, says: &[&str]) {
        // The time limit suits a busy machine.
        let error = within(30, S::connect(url)).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert_eq!(error.kind(), kind, "{url}: {text}");
        assert!(
            says.iter().all(|word| text.contains(word)),
            "{url}: {text} lacks one of {says:?}"
        );
        assert!(
            !text.contains("s3cret") && !text.contains("PRIVATE KEY"),
            "{text}"
        );
        self.store.nothing_is_left().await;
    }
}

fn url<S: TlsStore>(scheme: &str, hosts: &[String], words: &str) -> String {
    format!(
        "{scheme}://{}{}{}?timeout=4000{words}",
        S::USER,
        hosts.join(","),
        S::PATH
    )
}

fn ca(authority: &Certificates) -> String {
    format!("&ca={}", authority.ca().display())
}

/// The URL's options for a client's certificate.
#[must_use]
pub fn shown(files: &KeyFiles) -> String {
    format!(
        "&cert={}&key={}",
        files.certificate.display(),
        files.key.display()
    )
}

/// Acquires, confirms and releases a lock, and closes the store.
pub async fn works(store: Store) {
    let guard = store.lock("orders/42").ttl(TTL).acquire().await.unwrap();
    guard.confirm().await.unwrap();
    guard.release().await.unwrap();
    store
        .close(std::time::Duration::from_secs(1))
        .await
        .unwrap();
}

pub async fn a_private_ca_and_a_client_certificate<S: TlsStore>() {
    let world = World::<S>::mutual().await;
    world
        .works(&format!(
            "{}{}",
            world.ca(),
            shown(&world.authority.issue("client").unwrap())
        ))
        .await;
}

pub async fn a_wrong_ca<S: TlsStore>() {
    let world = World::<S>::plain_clients().await;
    world
        .refused(
            &ca(&world.stranger),
            Denied,
            &["not signed by the CA", "`ca`"],
        )
        .await;
    world
        .refused("", Denied, &["this system trusts", "`ca`"])
        .await;
    world.works(&world.ca()).await;
}

pub async fn a_wrong_host_name<S: TlsStore>() {
    let world = World::<S>::start(false, |authority| {
        authority.issue_for("db", &["db.internal"]).unwrap()
    })
    .await;
    world
        .refused(&world.ca(), Denied, &["not for 127.0.0.1", "db.internal"])
        .await;
}

pub async fn an_expired_certificate<S: TlsStore>() {
    let world =
        World::<S>::start(false, |authority| authority.issue_expired("late").unwrap()).await;
    world.refused(&world.ca(), Denied, &["expired"]).await;
}

pub async fn a_plain_server_behind_a_tls_url<S: TlsStore>() {
    let world = World::<S>::plain_clients().await;
    let plain = world.store.addrs().0;
    let words = [plain[0].as_str(), "TLS port"];
    world
        .refused_at(
            &url::<S>(&S::secure_scheme(), &plain, &world.ca()),
            Unavailable,
            &words,
        )
        .await;
}

pub async fn a_tls_server_behind_a_plain_url<S: TlsStore>() {
    let world = World::<S>::plain_clients().await;
    let secure = world.store.addrs().1;
    let scheme = format!("{}://", S::secure_scheme());
    let words = [secure[0].as_str(), scheme.as_str()];
    world
        .refused_at(&url::<S>(S::SCHEME, &secure, ""), Unavailable, &words)
        .await;
    // A plain URL does not accept the options of TLS, either.
    world
        .refused_at(&url::<S>(S::SCHEME, &secure, &world.ca()), Invalid, &["ca"])
        .await;
}

pub async fn half_a_key_pair<S: TlsStore>() {
    let world = World::<S>::plain_clients().await;
    let [one, two] = ["one", "two"].map(|name| world.authority.issue(name).unwrap());
    let folder = world.authority.ca().parent().unwrap();
    let junk = folder.join("junk.pem");
    let missing = folder.join("missing.pem");
    fs::write(&junk, "-----BEGIN CERTIFICATE-----\ns3cret\n").unwrap();
    let pair = |certificate: &KeyFiles, key: &KeyFiles| {
        shown(&KeyFiles {
            certificate: certificate.certificate.clone(),
            key: key.key.clone(),
        })
    };
    for (words, says) in [
        (
            format!("&cert={}", one.certificate.display()),
            "cert without key",
        ),
        (format!("&key={}", one.key.display()), "key without cert"),
        (pair(&one, &two), "do not fit together"),
        (format!("&ca={}", missing.display()), "missing.pem"),
        (format!("&ca={}", junk.display()), "junk.pem"),
    ] {
        world.refused(&words, Invalid, &[says]).await;
    }
}

pub async fn no_client_certificate<S: TlsStore>() {
    let world = World::<S>::mutual().await;
    world
        .refused(
            &world.ca(),
            Denied,
            &["demands a client certificate", "`cert`"],
        )
        .await;
    for files in [
        world.stranger.issue("client").unwrap(),
        world.authority.issue_expired("late").unwrap(),
    ] {
        let words = format!("{}{}", world.ca(), shown(&files));
        world
            .refused(&words, Denied, &["refused the client's certificate"])
            .await;
    }
}

/// Returns whether this process is there for this case alone, since a process has only one default provider. Elsewhere it runs the
/// case in a process of its own.
fn is_alone() -> bool {
    const ALONE: &str = "LEASEHOLD_CASE_ALONE";
    if env::var_os(ALONE).is_some() {
        return true;
    }
    // A case runs on the thread of its test, which is named like the test.
    let here = thread::current();
    let words = ["--exact", here.name().unwrap(), "--nocapture"];
    let mut child = Command::new(env::current_exe().unwrap());
    let output = child.args(words).env(ALONE, "1").output().unwrap();
    let printed =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    assert!(
        output.status.success() && printed[0].contains("1 passed"),
        "{}",
        printed.concat()
    );
    false
}

/// The program contains two providers of cryptography and has installed none, so that rustls would choose none. These tests do.
pub async fn two_providers_and_no_choice<S: TlsStore>() {
    if !is_alone() {
        return;
    }
    assert!(CryptoProvider::get_default().is_none());
    let world = World::<S>::plain_clients().await;
    world.works(&world.ca()).await;
    // It has made no choice for the program.
    let chosen = CryptoProvider::get_default().is_some();
    assert_eq!(chosen, S::NEEDS_DEFAULT_PROVIDER);
}

/// The program has installed a provider of cryptography for its own purposes, which knows no cipher.
pub async fn a_provider_of_no_use<S: TlsStore>() {
    if !is_alone() {
        return;
    }
    useless().install_default().unwrap();
    let world = World::<S>::plain_clients().await;
    world
        .refused(&world.ca(), Invalid, &["CryptoProvider", "of no use"])
        .await;
}

fn useless() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: Vec::new(),
        kx_groups: Vec::new(),
        signature_verification_algorithms: WebPkiSupportedAlgorithms {
            all: &[],
            mapping: &[],
        },
        secure_random: &Useless,
        key_provider: &Useless,
    }
}

#[derive(Debug)]
struct Useless;

impl SecureRandom for Useless {
    fn fill(&self, _: &mut [u8]) -> std::result::Result<(), GetRandomFailed> {
        Err(GetRandomFailed)
    }
}

impl KeyProvider for Useless {
    fn load_private_key(
        &self,
        _: PrivateKeyDer<'static>,
    ) -> std::result::Result<std::sync::Arc<dyn SigningKey>, TlsError> {
        Err(TlsError::General("none".into()))
    }
}

/// Defines one test for each case, with the servers of this type.
#[macro_export]
macro_rules! tls_cases {
    ($store:ty) => {
        $crate::tls_cases! { $store:
            a_private_ca_and_a_client_certificate a_wrong_ca a_wrong_host_name an_expired_certificate
            a_plain_server_behind_a_tls_url a_tls_server_behind_a_plain_url half_a_key_pair no_client_certificate
            two_providers_and_no_choice a_provider_of_no_use
        }
    };
    ($store:ty: $($case:ident)*) => { $(
        #[tokio::test]
        async fn $case() {
            $crate::verbs::bounded($crate::tls_cases::$case::<$store>()).await;
        }
    )* };
}
