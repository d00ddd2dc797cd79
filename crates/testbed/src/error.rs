//! The errors of the testbed.

use std::io;

/// A result with the testbed's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a server could not be started, controlled or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program is not installed.
    #[error(
        "{program} was not found; install it with `apt-get install {package}` or name its path in {variable}"
    )]
    Missing {
        /// The missing program or file.
        program: &'static str,
        /// The Debian package that holds it.
        package: &'static str,
        /// The environment variable that can name its path.
        variable: &'static str,
    },

    /// The operating system refused something.
    #[error("{doing}: {source}")]
    Io {
        /// The failed action.
        doing: String,
        /// The error of the system.
        source: io::Error,
    },

    /// The server ended before it was ready.
    #[error("{server} ended before it was ready; its log ends with:\n{log}")]
    Ended {
        /// The server, with its address.
        server: String,
        /// The last lines of its log.
        log: String,
    },

    /// The server did not get ready in time.
    #[error("{server} was not ready within {seconds} s ({last}); its log ends with:\n{log}")]
    NotReady {
        /// The server, with its address.
        server: String,
        /// The time that was waited for it, in seconds.
        seconds: u64,
        /// The error of the last question.
        last: String,
        /// The last lines of its log.
        log: String,
    },

    /// The server gave an unexpected answer.
    #[error("{asked}: unexpected answer: {answer}")]
    Answer {
        /// The request.
        asked: String,
        /// The answer, or the helpful part of it.
        answer: String,
    },

    /// The server is not running.
    #[error("{0} is not running")]
    NotRunning(String),
}

impl Error {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    pub(crate) fn answer(asked: impl Into<String>, answer: impl Into<String>) -> Self {
        Self::Answer {
            asked: asked.into(),
            answer: answer.into(),
        }
    }

    /// Returns whether another start with other ports may succeed: another program took a port
    /// between the choice and the start.
    pub(crate) fn is_port_taken(&self) -> bool {
        matches!(self, Self::Ended { log, .. } if log.to_ascii_lowercase().contains("address already in use"))
    }
}
