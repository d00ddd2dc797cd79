//! What the system says of processes.

use std::fs;
use std::time::Duration;

use crate::subject::Result;

/// What another has used, summed over its threads: `stat` would count in hundredths of a second, too coarse for a round.
pub fn cpu(pid: u32) -> Result<Duration> {
    let mut nanos = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let text = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        nanos += text
            .split(' ')
            .next()
            .and_then(|word| word.parse::<u64>().ok())
            .unwrap_or_default();
    }
    Ok(Duration::from_nanos(nanos))
}

/// This process, and its children.
pub fn family(pid: u32) -> Vec<u32> {
    let children =
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .chain([pid])
        .collect()
}

/// The bytes that another has read and written: its sockets, and the files it writes.
pub fn bytes(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io"))?;
    let numbers = text.lines().filter_map(|line| {
        line.strip_prefix("rchar: ")
            .or(line.strip_prefix("wchar: "))
    });
    Ok(numbers
        .filter_map(|number| number.parse::<u64>().ok())
        .sum())
}

/// What this process has of the machine's memory, in bytes.
pub fn own_memory() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}
