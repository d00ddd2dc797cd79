//! Histories on disk: one file for each process, written line by line, and read as one history in
//! the order of time.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use crate::event::{Event, What};

/// The number of events of a file that are sorted at a time: an event whose time was read before it
/// was written may stand behind those of other tasks.
const AHEAD: usize = 4096;

/// Appends events to the file of one process.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    p: u64,
}

impl Recorder {
    /// Makes the file of the process `p` in this folder, or appends to it.
    ///
    /// # Errors
    ///
    /// The error of the file system.
    pub fn new(folder: &Path, p: u64) -> io::Result<Recorder> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(Recorder::file(folder, p))?;
        Ok(Recorder { file, p })
    }

    /// The file of the process `p` in this folder.
    #[must_use]
    pub fn file(folder: &Path, p: u64) -> PathBuf {
        folder.join(format!("{p:06}.jsonl"))
    }

    /// Appends an event, and returns when the system has it: a process that is killed then has
    /// written it.
    ///
    /// # Errors
    ///
    /// The error of the file system.
    pub fn write(&self, t: u64, what: What) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Event::new(t, self.p, what))?;
        line.push(b'\n');
        // One call: the lines of several threads do not mix.
        (&self.file).write_all(&line)
    }
}

/// A line that is no event.
#[derive(Debug, thiserror::Error)]
#[error("{}:{line}: {source}", file.display())]
pub struct BadHistory {
    file: PathBuf,
    line: usize,
    source: io::Error,
}

/// The events of several files in the order of their times, read as they are needed.
#[derive(Debug)]
pub struct History {
    sources: Vec<Source>,
}

impl History {
    /// The history in these files.
    ///
    /// # Errors
    ///
    /// A file cannot be opened.
    pub fn open(files: impl IntoIterator<Item = PathBuf>) -> Result<History, BadHistory> {
        let sources = files.into_iter().map(Source::open);
        Ok(History {
            sources: sources.collect::<Result<_, _>>()?,
        })
    }

    /// The history in the files of this folder whose names end with `.jsonl`.
    ///
    /// # Errors
    ///
    /// The folder or a file cannot be opened.
    pub fn in_folder(folder: &Path) -> Result<History, BadHistory> {
        let bad = |source| BadHistory {
            file: folder.into(),
            line: 0,
            source,
        };
        let entries = folder
            .read_dir()
            .and_then(|all| all.map(|it| Ok(it?.path())).collect::<io::Result<Vec<_>>>());
        let mut files = entries.map_err(bad)?;
        files.retain(|file| file.extension().is_some_and(|it| it == "jsonl"));
        files.sort();
        History::open(files)
    }
}

impl Iterator for History {
    type Item = Result<Event, BadHistory>;

    fn next(&mut self) -> Option<Self::Item> {
        for source in &mut self.sources {
            if let Err(error) = source.fill() {
                self.sources.clear();
                return Some(Err(error));
            }
        }
        let first = self
            .sources
            .iter_mut()
            .filter(|source| !source.ready.is_empty())
            .min_by_key(|source| source.order())?;
        first.ready.pop().map(|Reverse(next)| Ok(next.event))
    }
}

#[derive(Debug)]
struct Source {
    file: PathBuf,
    lines: BufReader<File>,
    line: usize,
    ended: bool,
    ready: BinaryHeap<Reverse<Ready>>,
}

impl Source {
    fn open(file: PathBuf) -> Result<Source, BadHistory> {
        match File::open(&file) {
            Ok(opened) => Ok(Source {
                file,
                lines: BufReader::new(opened),
                line: 0,
                ended: false,
                ready: BinaryHeap::new(),
            }),
            Err(source) => Err(BadHistory {
                file,
                line: 0,
                source,
            }),
        }
    }

    fn order(&self) -> Option<(u64, bool)> {
        self.ready.peek().map(|Reverse(next)| next.event.order())
    }

    fn fill(&mut self) -> Result<(), BadHistory> {
        while !self.ended && self.ready.len() < AHEAD {
            let mut text = Vec::new();
            let read = self.lines.read_until(b'\n', &mut text);
            self.line += 1;
            let bad = |source| BadHistory {
                file: self.file.clone(),
                line: self.line,
                source,
            };
            read.map_err(bad)?;
            // A process that was killed while it wrote leaves a part of a line, which may end
            // within a character.
            if !text.ends_with(b"\n") {
                self.ended = true;
                return Ok(());
            }
            let event: Event = serde_json::from_slice(&text).map_err(|error| bad(error.into()))?;
            self.ready.push(Reverse(Ready {
                line: self.line,
                event,
            }));
        }
        Ok(())
    }
}

/// An event that was read, with its place in the file.
#[derive(Debug)]
struct Ready {
    line: usize,
    event: Event,
}

impl Ready {
    fn order(&self) -> ((u64, bool), usize) {
        (self.event.order(), self.line)
    }
}

impl PartialEq for Ready {
    fn eq(&self, other: &Ready) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Ready {}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Ready) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ready {
    fn cmp(&self, other: &Ready) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}
