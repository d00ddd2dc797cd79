//! Scripts: they run in Redis's version of Lua, with the functions of its `redis`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::take;

use mlua::{Error, Function, Lua, MultiValue, Result, Table, Value};

use crate::redis::commands::execute;
use crate::redis::reply::{Reply, double};
use crate::redis::state::State;

thread_local! {
    /// The scripts that this thread has compiled, by their hashes.
    static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
    /// The state that the running script works on.
    static STATE: RefCell<State> = RefCell::default();
}

struct Engine {
    lua: Lua,
    compiled: BTreeMap<String, Function>,
}

/// Runs a script. The call by source and the call by hash do the same.
pub(crate) fn run(
    state: &mut State,
    hash: &str,
    source: &[u8],
    keys: &[Vec<u8>],
    args: &[Vec<u8>],
) -> Reply {
    ENGINE.with_borrow_mut(|engine| {
        let engine = match engine {
            Some(engine) => engine,
            none => match Engine::new() {
                Ok(made) => none.insert(made),
                Err(error) => return Reply::error(format!("ERR {error}")),
            },
        };
        let function = match engine.function(hash, source) {
            Ok(function) => function,
            Err(error) => {
                return Reply::error(format!(
                    "ERR Error compiling script (new function): {}",
                    said(&error)
                ));
            }
        };
        state.wrote = false;
        state.declared = keys.to_vec();
        STATE.set(take(state));
        let answer = engine.call(&function, keys, args);
        *state = STATE.take();
        answer.unwrap_or_else(|error| failed(&error, hash))
    })
}

impl Engine {
    fn new() -> Result<Engine> {
        let lua = Lua::new();
        let redis = lua.create_table()?;
        redis.set("call", lua.create_function(call)?)?;
        redis.set(
            "pcall",
            lua.create_function(|lua, words| {
                call(lua, words).or_else(|error| caught(lua, &error))
            })?,
        )?;
        redis.set("sha1hex", lua.create_function(sha1hex)?)?;
        lua.globals().set("redis", redis)?;
        Ok(Engine {
            lua,
            compiled: BTreeMap::new(),
        })
    }

    fn function(&mut self, hash: &str, source: &[u8]) -> Result<Function> {
        if let Some(function) = self.compiled.get(hash) {
            return Ok(function.clone());
        }
        let function = self
            .lua
            .load(source)
            .set_name("@user_script")
            .into_function()?;
        self.compiled.insert(hash.to_owned(), function.clone());
        Ok(function)
    }

    fn call(&self, function: &Function, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Result<Reply> {
        for (name, words) in [("KEYS", keys), ("ARGV", args)] {
            let words = words
                .iter()
                .map(|word| self.lua.create_string(word))
                .collect::<Result<Vec<_>>>()?;
            self.lua.globals().set(name, words)?;
        }
        from_lua(&function.call::<Value>(())?)
    }
}

/// `redis.call`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature of functions for Lua"
)]
fn call(lua: &Lua, words: MultiValue) -> Result<Value> {
    let word = |word: &Value| match word {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        // All numbers of Lua are of one kind, whole or not.
        Value::Integer(number) => Ok(double(*number as f64).into_bytes()),
        Value::Number(number) => Ok(double(*number).into_bytes()),
        _ => {
            let what = "ERR Lua redis lib command arguments must be strings or integers";
            Err(Error::RuntimeError(what.to_owned()))
        }
    };
    let words = words.iter().map(word).collect::<Result<Vec<_>>>()?;
    let answer = STATE.with_borrow_mut(|state| {
        undeclared(state, &words).unwrap_or_else(|| execute(state, &words, true))
    });
    to_lua(lua, &answer)
}

/// The refusal of a strict server, if the script did not declare a key of this command.
fn undeclared(state: &State, words: &[Vec<u8>]) -> Option<Reply> {
    let (name, args) = words.split_first().filter(|_| state.is_strict)?;
    let keys = match name.to_ascii_lowercase().as_slice() {
        b"time" | b"publish" | b"scan" | b"ping" | b"echo" => 0,
        b"exists" | b"del" | b"unlink" | b"mget" => args.len(),
        b"rename" => 2,
        _ => 1,
    };
    let key = args
        .iter()
        .take(keys)
        .find(|key| !state.declared.contains(key))?;
    let key = String::from_utf8_lossy(key);
    Some(Reply::error(format!(
        "ERR script tried accessing undeclared key, key: {key}"
    )))
}

/// `redis.sha1hex`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature of functions for Lua"
)]
fn sha1hex(_: &Lua, text: mlua::LuaString) -> Result<String> {
    Ok(sha1_smol::Sha1::from(&*text.as_bytes())
        .digest()
        .to_string())
}

/// `redis.pcall` returns a table in the place of an error.
fn caught(lua: &Lua, error: &Error) -> Result<Value> {
    let table = lua.create_table()?;
    table.set("err", said(error))?;
    Ok(Value::Table(table))
}

/// The first line of an error, without the additions of the library.
fn said(error: &Error) -> String {
    let text = match error {
        Error::CallbackError { cause, .. } => return said(cause),
        Error::RuntimeError(text) | Error::SyntaxError { message: text, .. } => text.clone(),
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}

/// The error of a script: that of a command, or its own.
fn failed(error: &Error, hash: &str) -> Reply {
    let text = said(error);
    let is_of_command = matches!(error, Error::CallbackError { .. });
    let code = if is_of_command { "" } else { "ERR " };
    Reply::error(format!("{code}{text} script: {hash}, on @user_script:1."))
}

fn to_lua(lua: &Lua, reply: &Reply) -> Result<Value> {
    let list = |all: &mut dyn Iterator<Item = &Reply>| {
        let table = lua.create_table()?;
        for (nth, one) in all.enumerate() {
            table.raw_set(nth + 1, to_lua(lua, one)?)?;
        }
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Error(text) => Err(Error::RuntimeError(text.clone())),
        Reply::Status(text) => {
            let table = lua.create_table()?;
            table.raw_set("ok", text.as_str())?;
            Ok(Value::Table(table))
        }
        Reply::Int(number) => Ok(Value::Number(*number as f64)),
        Reply::Double(number) => Ok(Value::String(lua.create_string(double(*number))?)),
        Reply::Bulk(bytes) => Ok(Value::String(lua.create_string(bytes)?)),
        Reply::Verbatim(text) => Ok(Value::String(lua.create_string(text)?)),
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Array(all) | Reply::Push(all) => list(&mut all.iter()),
        Reply::Map(pairs) | Reply::Pairs(pairs) => {
            list(&mut pairs.iter().flat_map(|(one, other)| [one, other]))
        }
    }
}

fn from_lua(value: &Value) -> Result<Reply> {
    Ok(match value {
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Int(*number),
        Value::Number(number) => Reply::Int(*number as i64),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => return from_table(table),
        _ => Reply::Nil,
    })
}

fn from_table(table: &Table) -> Result<Reply> {
    for (name, reply) in [
        ("err", Reply::Error as fn(String) -> Reply),
        ("ok", Reply::Status),
    ] {
        if let Value::String(text) = table.raw_get::<Value>(name)? {
            return Ok(reply(text.to_string_lossy()));
        }
    }
    // The list ends at the first nil.
    let mut all = Vec::new();
    loop {
        match table.raw_get::<Value>(all.len() + 1)? {
            Value::Nil => return Ok(Reply::Array(all)),
            one => all.push(from_lua(&one)?),
        }
    }
}
