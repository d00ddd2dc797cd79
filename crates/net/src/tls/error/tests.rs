//! Explanations of the errors of openssl's servers, with certificates as people make them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use leasehold_core::ErrorKind::{self, Denied, Invalid, Unavailable, Unsupported};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use tempfile::TempDir;

use super::*;
use crate::Tls;

/// A folder with a CA, `ca.pem`, and the certificates that it signs.
struct Folder {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Folder {
    fn new() -> Folder {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "a CA");
        let key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&key).unwrap().pem();
        fs::write(dir.path().join("ca.pem"), ca).unwrap();
        fs::write(dir.path().join("ca.key"), key.serialize_pem()).unwrap();
        let issuer = Issuer::new(params, key);
        Folder { dir, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Signs a certificate for these hosts: `name.pem` and `name.key`.
    fn sign(&self, name: &str, hosts: &[&str], change: impl FnOnce(&mut CertificateParams)) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, "localhost");
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        fs::write(self.path(&format!("{name}.pem")), certificate).unwrap();
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// Runs openssl in the folder, as a person would.
    fn openssl(&self, args: &str) {
        let mut openssl = Command::new("openssl");
        let ran = openssl.args(args.split(' ')).current_dir(self.dir.path());
        let output = ran.output().unwrap();
        assert!(output.status.success(), "{args}: {output:?}");
    }

    /// Serves with the certificate of this name, and with these further options.
    fn serve(&self, name: &str, words: &str) -> Server {
        let mut openssl = Command::new("openssl");
        openssl.args(["s_server", "-accept", "127.0.0.1:0", "-naccept", "9"]);
        openssl.args([
            "-cert",
            &format!("{name}.pem"),
            "-key",
            &format!("{name}.key"),
        ]);
        openssl.args(words.split_whitespace());
        openssl.current_dir(self.dir.path());
        openssl.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = openssl.stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The server prints `ACCEPT 127.0.0.1:port` once it listens.
        let port = lines.map_while(Result::ok).find_map(|line| {
            line.strip_prefix("ACCEPT ")?
                .rsplit_once(':')?
                .1
                .parse()
                .ok()
        });
        Server {
            child,
            port: port.unwrap(),
        }
    }

    fn tls(&self) -> Tls {
        Tls::new().ca_file(self.path("ca.pem"))
    }

    fn shown(&self, name: &str) -> Tls {
        let [certificate, key] = ["pem", "key"].map(|end| self.path(&format!("{name}.{end}")));
        self.tls().client_files(certificate, key)
    }
}

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// The error that a client finds with this server.
    async fn diagnosed(&self, tls: &Tls) -> Option<Error> {
        let client = tls.client().await.unwrap();
        client.diagnose("localhost", self.port).await
    }

    async fn refused(&self, tls: &Tls, kind: ErrorKind, says: &[&str]) -> String {
        let error = self.diagnosed(tls).await.unwrap();
        told(&error, kind, says)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn told(error: &Error, kind: ErrorKind, says: &[&str]) -> String {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(says.iter().all(|words| text.contains(words)), "{text}");
    // The text has no name of a type of rustls.
    let debugged = ["DnsName(", "IpAddress(", "Other(", "OtherError"];
    assert!(!debugged.iter().any(|words| text.contains(words)), "{text}");
    text
}

/// The test makes the certificate that a newcomer makes first, and then one as the error says.
#[tokio::test]
async fn a_self_signed_certificate_is_made_anew_by_the_words_of_the_error() {
    let folder = Folder::new();
    let make =
        "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout s.key -out s.pem";
    folder.openssl(make);
    let trusts_it = Tls::new().ca_file(folder.path("s.pem"));
    let text = folder
        .serve("s", "")
        .refused(&trusts_it, Denied, &["that of a CA", "openssl req -x509"])
        .await;
    let words = text.rsplit('`').nth(1).unwrap();
    folder.openssl(&format!("{make} {words}"));
    assert!(folder.serve("s", "").diagnosed(&trusts_it).await.is_none());
}

/// Signs a certificate by `openssl x509 -req` without a file of extensions.
fn sign_without_extensions(folder: &Folder, name: &str) {
    folder.openssl(&format!(
        "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {name}.key -out {name}.csr"
    ));
    folder.openssl(&format!(
        "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -out {name}.pem"
    ));
}

#[tokio::test]
async fn a_certificate_without_extensions_is_called_so() {
    let folder = Folder::new();
    sign_without_extensions(&folder, "old");
    let says = ["version 1", "openssl x509 -req -extfile"];
    let server = folder.serve("old", "");
    server.refused(&folder.tls(), Denied, &says).await;
    let error = folder.shown("old").client().await.unwrap_err();
    told(&error, Invalid, &says);
    assert!(!error.to_string().contains("fit together"), "{error}");
}

#[tokio::test]
async fn a_certificate_for_others_or_for_nobody_names_them() {
    let folder = Folder::new();
    let cases: [(&[&str], &[&str]); 2] = [
        (
            &[],
            &["no subjectAltName", "-addext subjectAltName=DNS:localhost"],
        ),
        (
            &["db.internal", "10.0.0.1"],
            &["not for localhost, but for db.internal, 10.0.0.1:"],
        ),
    ];
    for (hosts, says) in cases {
        folder.sign("s", hosts, |_| ());
        folder
            .serve("s", "")
            .refused(&folder.tls(), Denied, says)
            .await;
    }
    folder.sign("s", &["localhost"], |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    folder
        .serve("s", "")
        .refused(&folder.tls(), Denied, &["not for servers"])
        .await;
}

#[tokio::test]
async fn a_server_without_a_common_cipher_or_version_demands_no_certificate() {
    let folder = Folder::new();
    folder.openssl(
        "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout s.key -out s.pem",
    );
    for words in [
        "-tls1_2 -cipher AES128-SHA256",
        "-tls1_3 -groups X448",
        "-tls1_1 -cipher DEFAULT@SECLEVEL=0",
    ] {
        let server = folder.serve("s", words);
        let text = server
            .refused(&folder.tls(), Unsupported, &["in common"])
            .await;
        assert!(!text.contains("certificate"), "{words}: {text}");
    }
}

/// The test covers TLS 1.2, where the alert is the one that is also sent about ciphers, and TLS
/// 1.3.
#[tokio::test]
async fn why_a_server_refuses_a_client_is_told() {
    let folder = Folder::new();
    let stranger = Folder::new();
    folder.sign("s", &["localhost"], |_| ());
    folder.sign("good", &["me"], |_| ());
    folder.sign("late", &["me"], |params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    });
    folder.sign("of-server", &["me"], |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    stranger.sign("good", &["me"], |_| ());
    for version in ["-tls1_2", "-tls1_3"] {
        let words = format!("{version} -Verify 2 -verify_return_error -CAfile ca.pem");
        let server = folder.serve("s", &words);
        let good = server.diagnosed(&folder.shown("good")).await;
        assert!(good.is_none(), "{version}: {good:?}");
        let refused = "refused the client's certificate";
        let theirs = stranger.shown("good").ca_file(folder.path("ca.pem"));
        for (tls, says) in [
            (
                folder.tls(),
                ["demands a client certificate", "give `cert` and `key`"],
            ),
            (
                folder.shown("late"),
                [refused, "it has expired: put a new one"],
            ),
            (folder.shown("of-server"), [refused, "lacks clientAuth"]),
            (theirs, [refused, "signed by the CA that it trusts"]),
        ] {
            server.refused(&tls, Denied, &says).await;
        }
    }
}

#[tokio::test]
async fn files_that_are_no_pem_say_how_to_make_it() {
    let folder = Folder::new();
    folder.sign("a", &["me"], |_| ());
    folder.sign("b", &["me"], |_| ());
    folder.openssl("x509 -in a.pem -outform der -out a.crt");
    folder.openssl("pkey -in a.key -outform der -out der.key");
    folder.openssl("pkey -in a.key -aes256 -passout pass:s3cret -out hidden.key");
    fs::write(folder.path("junk"), [0xff, 0xfe, 0]).unwrap();
    let pair = |certificate: &str, key: &str| {
        folder
            .tls()
            .client_files(folder.path(certificate), folder.path(key))
    };
    for (tls, says) in [
        (
            Tls::new().ca_file(folder.path("a.crt")),
            ["a.crt", "openssl x509 -inform der"],
        ),
        (
            pair("a.crt", "a.key"),
            ["a.crt", "openssl x509 -inform der"],
        ),
        (
            pair("a.pem", "der.key"),
            ["der.key", "openssl pkey -inform der"],
        ),
        (pair("a.pem", "hidden.key"), ["hidden.key", "encrypted"]),
        (pair("a.pem", "a.pem"), ["no private key in", "a.pem"]),
        (pair("a.pem", "b.key"), ["do not fit together", "`key`"]),
        (
            Tls::new().ca_file(folder.path("junk")),
            ["junk", "not in PEM"],
        ),
    ] {
        let error = tls.client().await.unwrap_err();
        told(&error, Invalid, &says);
        assert!(!error.to_string().contains("UTF-8"), "{error}");
    }
}

#[tokio::test]
async fn a_closed_port_is_named() {
    let folder = Folder::new();
    folder.sign("s", &["localhost"], |_| ());
    let port = folder.serve("s", "").port;
    let client = folder.tls().client().await.unwrap();
    let error = client.diagnose("127.0.0.1", port).await.unwrap();
    told(&error, Unavailable, &["nothing listens at this port"]);
}

#[test]
fn who_closes_in_the_handshake_may_speak_no_tls() {
    let known = Facts {
        own_ca: true,
        was_asked: false,
        chain: &[],
    };
    for (kind, says) in [
        (io::ErrorKind::UnexpectedEof, true),
        (io::ErrorKind::ConnectionReset, true),
        (io::ErrorKind::PermissionDenied, false),
    ] {
        let error = of_handshake(("h", 1), &kind.into(), &known);
        assert_eq!(error.kind(), Unavailable);
        assert_eq!(
            error.to_string().contains("name its TLS port"),
            says,
            "{error}"
        );
    }
}
