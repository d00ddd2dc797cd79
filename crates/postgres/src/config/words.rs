//! The words of a database: those of its URL, and those that libpq finds elsewhere.

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Address;

use super::files::{Environment, service};

/// The words that the environment may have, with libpq's names of the variables.
const VARIABLES: [(&str, &str); 33] = [
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("service", "PGSERVICE"),
    ("options", "PGOPTIONS"),
    ("application_name", "PGAPPNAME"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS"),
    ("client_encoding", "PGCLIENTENCODING"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("sslmode", "PGSSLMODE"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("sslcertmode", "PGSSLCERTMODE"),
    ("sslcompression", "PGSSLCOMPRESSION"),
    ("sslcrl", "PGSSLCRL"),
    ("sslcrldir", "PGSSLCRLDIR"),
    ("sslsni", "PGSSLSNI"),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    ("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"),
    ("min_protocol_version", "PGMINPROTOCOLVERSION"),
    ("max_protocol_version", "PGMAXPROTOCOLVERSION"),
    ("gssencmode", "PGGSSENCMODE"),
    ("krbsrvname", "PGKRBSRVNAME"),
    ("requirepeer", "PGREQUIREPEER"),
    ("require_auth", "PGREQUIREAUTH"),
];

/// Words that may only say how things are here anyway: with these values, and what else to write.
const FIXED: [(&str, &[&str], &str); 14] = [
    (
        "target_session_attrs",
        &["any", "read-write", "primary"],
        "read-write, since locks are written: the store uses the primary of the hosts",
    ),
    (
        "load_balance_hosts",
        &["disable", "random"],
        "disable or random, and only the primary of the hosts is used",
    ),
    (
        "client_encoding",
        &["UTF8", "utf8", "UTF-8", "utf-8", "auto"],
        "UTF8, the only one that locks have",
    ),
    (
        "sslnegotiation",
        &["postgres"],
        "postgres: TLS begins with a question to the server",
    ),
    (
        "sslcertmode",
        &["allow"],
        "allow: a server is shown the certificate of sslcert if it asks for one",
    ),
    (
        "sslcompression",
        &["0"],
        "0, since TLS is not compressed any more",
    ),
    ("sslsni", &["1"], "1: the server is told the host's name"),
    (
        "ssl_min_protocol_version",
        &["TLSv1", "TLSv1.1", "TLSv1.2"],
        "TLSv1.2 at most: the versions are 1.2 and 1.3",
    ),
    (
        "ssl_max_protocol_version",
        &["TLSv1.3"],
        "TLSv1.3: the versions are 1.2 and 1.3",
    ),
    (
        "min_protocol_version",
        &["3.0"],
        "3.0, the version that is spoken",
    ),
    (
        "max_protocol_version",
        &["3.0", "3.2", "latest"],
        "3.0 at least, the version that is spoken",
    ),
    (
        "gssencmode",
        &["disable", "prefer"],
        "disable: encryption is by TLS (sslmode), and not by GSSAPI",
    ),
    (
        "replication",
        &["false", "off", "no", "0"],
        "false: locks are no replication",
    ),
    (
        "uselibpqcompat",
        &["true"],
        "true: sslmode means what it means to libpq",
    ),
];

/// Words for which nothing is to be done: those of other clients about their own statements (the
/// store prepares none), about the server's version (it is asked for) and about Supabase's own
/// poolers, and those of libpq about GSSAPI, which is not used.
const MOOT: [&str; 9] = [
    "serverVersion",
    "statement_cache_size",
    "statement-cache-capacity",
    "prepared_statements",
    "prepareThreshold",
    "supa",
    "krbsrvname",
    "gsslib",
    "gssdelegation",
];

/// Words that are refused, with what to do instead.
const REFUSED: [(&str, &str); 10] = [
    (
        "requiressl",
        "requiressl is written sslmode=verify-full, or sslmode=require, which verifies nothing",
    ),
    (
        "hostaddr",
        "hostaddr is not read: write the address as the host",
    ),
    (
        "sslcrl",
        "sslcrl: there are no revocation lists; leave it out",
    ),
    (
        "sslcrldir",
        "sslcrldir: there are no revocation lists; leave it out",
    ),
    (
        "sslpassword",
        "sslpassword: the key of sslkey may not be encrypted; `openssl pkey` decrypts it",
    ),
    (
        "requirepeer",
        "requirepeer is not checked: leave it out, and let only that user write to the socket's folder",
    ),
    (
        "require_auth",
        "require_auth is not checked: leave it out, and write sslmode=verify-full",
    ),
    (
        "socket_timeout",
        "socket_timeout is written timeout, in milliseconds",
    ),
    (
        "sslaccept",
        "sslaccept is written sslmode=verify-full (strict), or sslmode=require, which verifies nothing",
    ),
    (
        "sslidentity",
        "sslidentity is written sslcert and sslkey, two files in PEM",
    ),
];

/// What is known of a database. The first place that has a word counts: the URL, then the service,
/// then the environment.
pub(super) struct Words {
    url: Address,
    others: Vec<Other>,
    /// The words that were taken from elsewhere than the URL, and from where.
    taken: Vec<(&'static str, String)>,
}

/// A word that is not in the URL.
struct Other {
    word: String,
    value: String,
    /// The place, for messages.
    origin: String,
}

impl Words {
    /// The words of this URL alone.
    pub(super) fn of(url: Address) -> Words {
        Words {
            url,
            others: Vec::new(),
            taken: Vec::new(),
        }
    }

    /// The words of this URL, of the service that it or the environment names, and of the
    /// environment.
    pub(super) fn with(url: Address, environment: Environment<'_>) -> Result<Words> {
        let mut words = Words::of(url);
        for (word, variable) in VARIABLES {
            let Some(value) = environment(variable).filter(|value| !value.is_empty()) else {
                continue;
            };
            let value = value
                .into_string()
                .map_err(|_| Error::new(ErrorKind::Invalid, format!("{variable} is not UTF-8")))?;
            words.others.push(Other {
                word: word.to_owned(),
                value,
                origin: variable.to_owned(),
            });
        }
        // Libpq still reads this older variable, which PGSSLMODE overrules.
        let older = environment("PGREQUIRESSL");
        if older.is_some_and(|value| value.as_encoded_bytes().starts_with(b"1")) {
            words.others.push(Other {
                word: "sslmode".to_owned(),
                value: "require".to_owned(),
                origin: "PGREQUIRESSL".to_owned(),
            });
        }
        if let Some(name) = words.take("service") {
            let (service, path) = service(&name, environment)?;
            let origin = format!("the service in {}", path.display());
            let service = service.into_iter().map(|(word, value)| Other {
                word,
                value,
                origin: origin.clone(),
            });
            words.others = service.chain(words.others).collect();
        }
        Ok(words)
    }

    pub(super) fn url(&mut self) -> &mut Address {
        &mut self.url
    }

    /// Takes a word out; `None` if no place has it.
    pub(super) fn take(&mut self, word: &'static str) -> Option<String> {
        self.take_beside(word, None)
    }

    /// Takes a word out that stands in a part of the URL, unless a parameter replaces the part.
    pub(super) fn take_beside(
        &mut self,
        word: &'static str,
        part: Option<String>,
    ) -> Option<String> {
        let others: Vec<Other> = self
            .others
            .extract_if(.., |other| other.word == word)
            .collect();
        let given = self.url.take(word).or(part);
        let may_be_undone = !["sslmode", "channel_binding"].contains(&word);
        match (given, others.into_iter().next()) {
            // An empty word undoes that of another place.
            (Some(given), Some(_)) if given.is_empty() && may_be_undone => None,
            (Some(given), _) => Some(given),
            (None, Some(other)) => {
                self.taken.push((word, other.origin));
                Some(other.value)
            }
            (None, None) => None,
        }
    }

    /// The place of a word that was taken from elsewhere than the URL.
    pub(super) fn origin(&self, word: &str) -> Option<&str> {
        let taken = self.taken.iter().find(|(known, _)| *known == word);
        taken.map(|(_, origin)| &**origin)
    }

    /// Drops the words that begin so and are not in the URL.
    pub(super) fn forget_elsewhere(&mut self, beginning: &str) {
        self.others
            .retain(|other| !other.word.starts_with(beginning));
    }

    /// Takes out a word that is a number of this unit.
    pub(super) fn number(&mut self, word: &'static str, unit: &str) -> Result<Option<u32>> {
        let Some(text) = self.take(word) else {
            return Ok(None);
        };
        let number = text.trim().parse();
        number
            .map(Some)
            .map_err(|_| self.invalid(word, &format!("is a number of {unit}")))
    }

    /// Takes out a word that is true or false.
    pub(super) fn flag(&mut self, word: &'static str) -> Result<Option<bool>> {
        match self.take(word).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(self.invalid(word, "is true or false")),
        }
    }

    /// Refuses a word, whose value is not shown, in a sentence of which the word is the subject.
    pub(super) fn invalid(&self, word: &'static str, what: &str) -> Error {
        match self.origin(word) {
            Some(origin) => Error::new(ErrorKind::Invalid, format!("{origin}: {word} {what}")),
            None => invalid(&format!("{word} {what}")),
        }
    }

    /// Refuses words that nobody took.
    pub(super) fn done(&mut self) -> Result<()> {
        for theirs in ["charset", "encoding"] {
            self.url.rename(theirs, "client_encoding");
        }
        for word in MOOT {
            self.take(word);
        }
        for (word, values, instead) in FIXED {
            if let Some(value) = self.take(word)
                && !values.contains(&&*value)
            {
                return Err(self.invalid(word, &format!("is {instead}")));
            }
        }
        for (word, instead) in REFUSED {
            if self.url.take(word).is_some() {
                return Err(invalid(instead));
            }
            if let Some(other) = self.others.iter().find(|other| other.word == word) {
                let what = format!("{}: {instead}", other.origin);
                return Err(Error::new(ErrorKind::Invalid, what));
            }
        }
        self.url.done()?;
        match self.others.first() {
            Some(Other { word, origin, .. }) => {
                let what = format!("{origin}: the word {word:?} is unknown: leave it out");
                Err(Error::new(ErrorKind::Invalid, what))
            }
            None => Ok(()),
        }
    }
}

pub(super) fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the store's URL: {what}"))
}
