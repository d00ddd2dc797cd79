//! The settings of URLs and options, and the refusal of wrong ones.

use leasehold_fuzz::fuzz_urls;

use super::*;

#[test]
fn a_url_says_where() {
    let config = Config::from_url("etcd://10.0.0.1:2379,[::1]:7,db/prod/eu/?timeout=250").unwrap();
    assert_eq!(
        config.endpoints,
        ["http://10.0.0.1:2379", "http://[::1]:7", "http://db:2379"]
    );
    assert_eq!(
        (config.root.as_str(), config.timeout),
        ("prod/eu/", Duration::from_millis(250))
    );
    let secret = Config::from_url("etcd://me:p%40ss%2Fword@h").unwrap();
    assert_eq!(format!("{secret:?}"), "http://h:2379/");
    assert!(
        format!("{:?}", secret.options).contains("p@ss/word"),
        "the password is understood"
    );
}

#[test]
fn a_bad_url_is_invalid_and_shows_no_secret() {
    for bad in [
        "redis://h",
        "etcd://",
        "etcd:///ns",
        "etcd://h:0",
        "etcd://h:99999",
        "etcd://h:x",
        "etcd://h,,h",
        "etcd://h/a//b",
        "etcd://h/%25x",
        "etcd://h/%zz",
        "etcd://h?timeout=0",
        "etcd://h?timeout=soon",
        "etcd://h?discover=secret",
        "etcd://h?retries=secret",
        "etcd://secret@h",
        "etcd://:secret@h",
        "etcd://me:secret%f@h",
        "etcd://h/#secret",
        "etcd://[::1]x",
    ] {
        let error = Config::from_url(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
        assert!(!format!("{error:?}").contains("secret"), "{bad}");
    }
    let read = Config::from_url("etcds://me:secret@h?ca=/a.pem");
    if cfg!(feature = "tls-no-provider") {
        assert_eq!(read.unwrap().endpoints, ["https://h:2379"]);
    } else {
        let error = read.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unsupported && error.to_string().contains("\"tls\""),
            "{error}"
        );
    }
}

#[test]
fn whatever_a_url_says_it_is_read_or_refused_and_no_secret_is_shown() {
    fuzz_urls(
        include_str!("../../corpus/urls"),
        |url| match Config::from_url(url) {
            Ok(config) => format!("{config:?}"),
            Err(e) => {
                assert!(
                    matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Unsupported),
                    "{e}"
                );
                format!("{e} {e:?}")
            }
        },
    );
}

#[test]
fn an_endpoint_has_no_user() {
    let config = Config::new(["http://me:secret@h:2379"]);
    let error = config.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    assert!(!format!("{error:?} {config:?}").contains("secret"));
}

/// A client of the program's has all settings of connections. Only settings of requests and keys
/// may be added.
#[tokio::test]
async fn a_client_of_the_program_s_has_its_own_way_to_connect() {
    let client = Client::connect(["http://127.0.0.1:1"], None).await.unwrap();
    let config = || {
        Config::with_client(client.clone())
            .namespace("prod")
            .timeout(Duration::from_secs(2))
    };
    config().check().unwrap();
    let refused = [
        config().options(ConnectOptions::new()),
        config().credentials(|| async { Ok(("me".to_owned(), "secret".to_owned())) }),
        config().discover(true),
        #[cfg(feature = "tls-no-provider")]
        config().tls(Tls::new()),
    ];
    for config in refused {
        let error = config.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(
            error
                .to_string()
                .contains("its own options, endpoints, credentials and TLS"),
            "{error}"
        );
    }
}
