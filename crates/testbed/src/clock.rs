//! The wall clock of a server, which can be stepped while the server runs. A library that is loaded
//! into the server adds the number in a file to the system's clock. The library is built with the C
//! compiler, which building the stores needs, too.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    error::{Error, Result},
    find::Program,
};

/// The source of the library. It maps the file into memory: PostgreSQL asks for the time in signal
/// handlers, which may neither open a file nor allocate memory. A process that is killed or stopped
/// leaves nothing behind, and no other process waits for it.
const SOURCE: &str = r"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *ahead;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv(CLOCK), O_RDONLY | O_CLOEXEC);
    void *seen = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (seen == MAP_FAILED) abort();
    ahead = seen;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
    if (ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + *ahead;
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
";

/// The environment variable by which the library finds the file.
const CLOCK: &str = "LEASEHOLD_CLOCK";

/// Makes a clock in this folder that equals the system's. Returns the program and the arguments
/// that start a server with it, and the files that the server must be able to read.
pub(crate) fn start_by(
    folder: &Path,
    program: &Path,
    args: Vec<String>,
) -> Result<(PathBuf, Vec<String>, [PathBuf; 2])> {
    let source = folder.join("clock.c");
    let library = folder.join("clock.so");
    let clock = folder.join("clock");
    fs::write(&source, SOURCE).map_err(Error::io("writing a clock"))?;
    fs::write(&clock, 0_i64.to_ne_bytes()).map_err(Error::io("writing a clock"))?;
    let mut compiler = Command::new(Program::CCompiler.find()?);
    compiler
        .args([
            "-O1",
            "-shared",
            "-fPIC",
            &format!("-DCLOCK=\"{CLOCK}\""),
            "-o",
        ])
        .arg(&library)
        .arg(&source);
    let built = compiler.output().map_err(Error::io("building a clock"))?;
    if !built.status.success() {
        return Err(Error::answer(
            "building a clock",
            String::from_utf8_lossy(&built.stderr),
        ));
    }
    let by = [
        format!("LD_PRELOAD={}", library.display()),
        format!("{CLOCK}={}", clock.display()),
        program.display().to_string(),
    ];
    Ok((
        PathBuf::from("/usr/bin/env"),
        by.into_iter().chain(args).collect(),
        [library, clock],
    ))
}

/// Steps the clock of this folder by this number of nanoseconds.
pub(crate) fn step(folder: &Path, by: i64) -> Result<()> {
    let stepped = || {
        let file = File::options()
            .read(true)
            .write(true)
            .open(folder.join("clock"))?;
        let mut ahead = [0; 8];
        file.read_exact_at(&mut ahead, 0)?;
        file.write_all_at(&(i64::from_ne_bytes(ahead) + by).to_ne_bytes(), 0)
    };
    stepped().map_err(Error::io("stepping a clock that was not asked for"))
}
