//! Busy loops beside the measurement: processes, since what they use is not what it costs.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::{env, hint, io, process, thread};

/// What makes this program one.
pub const WORD: &str = "--spin";

/// They end when this is dropped, and with this process, however that ends.
pub struct Beside(Vec<Child>);

impl Beside {
    pub fn start(count: usize) -> io::Result<Beside> {
        let program = env::current_exe()?;
        let spin = |_| {
            Command::new(&program)
                .arg(WORD)
                .stdin(Stdio::piped())
                .spawn()
        };
        Ok(Beside((0..count).map(spin).collect::<io::Result<_>>()?))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that is gone already needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Is one, until its input ends: that is when its parent does.
pub fn spin() -> ! {
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        process::exit(0);
    });
    loop {
        hint::black_box(());
    }
}
