//! Uses both, so that both are built.

use leasehold_sqlite::Sqlite;
use sqlx::sqlite::SqliteConnectOptions;

fn main() {
    let _ours = Sqlite::connect("sqlite:///locks.db");
    let _theirs = SqliteConnectOptions::new().filename("data.db");
}
