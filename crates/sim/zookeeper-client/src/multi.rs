//! Several reads, or several writes, in one request.

use zookeeper_client::{Error, MultiReadResult, MultiWriteError, MultiWriteResult, Stat};

use crate::Result;
use crate::client::Client;
use crate::values::{CreateOptions, error_of, unexpected};
use crate::wire::{Reader, Record, op};

impl Client {
    /// Returns a reader that sends several reads in one request.
    #[must_use]
    pub fn new_multi_reader(&self) -> MultiReader<'_> {
        MultiReader::new(self)
    }

    /// Returns a writer that sends several writes in one request.
    #[must_use]
    pub fn new_multi_writer(&self) -> MultiWriter<'_> {
        MultiWriter::new(self)
    }
}

/// Several reads in one request.
#[derive(Debug)]
pub struct MultiReader<'a> {
    client: &'a Client,
    record: Record,
}

impl<'a> MultiReader<'a> {
    pub(crate) fn new(client: &'a Client) -> MultiReader<'a> {
        MultiReader {
            client,
            record: Record::default(),
        }
    }

    fn add(&mut self, op: i32, path: &str) -> Result<()> {
        self.record = std::mem::take(&mut self.record)
            .part(op, -1)
            .text(path)
            .bool(false);
        Ok(())
    }

    /// Adds a read of a node.
    pub fn add_get_data(&mut self, path: &str) -> Result<()> {
        self.add(op::GET_DATA, path)
    }

    /// Adds a list of the children of a node.
    pub fn add_get_children(&mut self, path: &str) -> Result<()> {
        self.add(op::GET_CHILDREN, path)
    }

    /// Sends the reads.
    pub fn commit(&mut self) -> impl Future<Output = Result<Vec<MultiReadResult>>> + Send + use<> {
        let record = std::mem::take(&mut self.record);
        let asked = (!record.0.is_empty()).then(|| self.client.ask(op::MULTI_READ, record.end()));
        async move {
            let Some(asked) = asked else {
                return Ok(Vec::new());
            };
            read(&asked.await?.0).ok_or_else(unexpected)
        }
    }
}

fn read(body: &[u8]) -> Option<Vec<MultiReadResult>> {
    let (mut reader, mut all) = (Reader(body), Vec::new());
    while let Some(op) = reader.part() {
        all.push(match op {
            op::GET_DATA => MultiReadResult::Data {
                data: reader.bytes()?.to_vec(),
                stat: reader.stat()?,
            },
            op::GET_CHILDREN => MultiReadResult::Children {
                children: reader.texts()?,
            },
            _ => MultiReadResult::Error {
                err: error_of(reader.int()?),
            },
        });
    }
    Some(all)
}

/// Several writes in one request: all of them are carried out, or none.
#[derive(Debug)]
pub struct MultiWriter<'a> {
    client: &'a Client,
    record: Record,
}

impl<'a> MultiWriter<'a> {
    pub(crate) fn new(client: &'a Client) -> MultiWriter<'a> {
        MultiWriter {
            client,
            record: Record::default(),
        }
    }

    fn add(&mut self, op: i32, add: impl FnOnce(Record) -> Record) -> Result<()> {
        self.record = add(std::mem::take(&mut self.record).part(op, -1));
        Ok(())
    }

    /// Adds a condition.
    pub fn add_check_version(&mut self, path: &str, version: i32) -> Result<()> {
        self.add(op::CHECK, |record| record.text(path).int(version))
    }

    /// Adds a new node.
    pub fn add_create(
        &mut self,
        path: &str,
        data: &[u8],
        options: &CreateOptions<'_>,
    ) -> Result<()> {
        self.add(options.mode.op(), |record| {
            options.written(record, path, data)
        })
    }

    /// Adds a change of a node.
    pub fn add_set_data(&mut self, path: &str, data: &[u8], version: Option<i32>) -> Result<()> {
        self.add(op::SET_DATA, |record| {
            record.text(path).bytes(data).int(version.unwrap_or(-1))
        })
    }

    /// Adds the deletion of a node.
    pub fn add_delete(&mut self, path: &str, version: Option<i32>) -> Result<()> {
        self.add(op::DELETE, |record| {
            record.text(path).int(version.unwrap_or(-1))
        })
    }

    /// Sends the writes.
    pub fn commit(
        &mut self,
    ) -> impl Future<Output = std::result::Result<Vec<MultiWriteResult>, MultiWriteError>> + Send + use<>
    {
        let record = std::mem::take(&mut self.record);
        let asked = (!record.0.is_empty()).then(|| self.client.ask(op::MULTI, record.end()));
        async move {
            let Some(asked) = asked else {
                return Ok(Vec::new());
            };
            written(&asked.await?.0).ok_or_else(unexpected)?
        }
    }
}

/// The facts about a node where the answer has none.
const INVALID: Stat = Stat {
    czxid: -1,
    mzxid: -1,
    pzxid: -1,
    ctime: -1,
    mtime: -1,
    version: -1,
    cversion: -1,
    aversion: -1,
    ephemeral_owner: -1,
    data_length: -1,
    num_children: -1,
};

fn written(body: &[u8]) -> Option<std::result::Result<Vec<MultiWriteResult>, MultiWriteError>> {
    let (mut reader, mut all) = (Reader(body), Vec::new());
    let mut index = 0;
    while let Some(op) = reader.part() {
        all.push(match op {
            op::CHECK => MultiWriteResult::Check,
            op::DELETE => MultiWriteResult::Delete,
            op::SET_DATA => MultiWriteResult::SetData {
                stat: reader.stat()?,
            },
            // Some servers do not send the node's facts there.
            op::CREATE_OF_MULTI => MultiWriteResult::Create {
                path: reader.text()?,
                stat: INVALID,
            },
            op::CREATE => MultiWriteResult::Create {
                path: reader.text()?,
                stat: reader.stat()?,
            },
            _ => {
                let source = error_of(reader.int()?);
                if source != Error::UnexpectedErrorCode(0) {
                    return Some(Err(MultiWriteError::OperationFailed { index, source }));
                }
                MultiWriteResult::Check
            }
        });
        index += 1;
    }
    Some(Ok(all))
}
