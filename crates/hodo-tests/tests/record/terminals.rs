//! Programs that an interactive shell runs in a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hodo_tests::{Kind, build, hodo, scratch};

/// A shell in its own terminal.
struct Terminal {
    shell: Child,
    keys: File,
    shown: Arc<Mutex<Vec<u8>>>,
    seen: usize,
}

/// A new terminal: the side of its keys and screen, and that of programs.
fn pair() -> (File, File) {
    let open = |path: &str| {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY);
        options.open(path).expect("a terminal")
    };
    let keys = open("/dev/ptmx");
    let mut number: libc::c_uint = 0;
    // SAFETY: both calls have a descriptor of a new terminal, and the second one a place for its number.
    let results = unsafe {
        let unlocked = libc::unlockpt(keys.as_raw_fd());
        (
            unlocked,
            libc::ioctl(keys.as_raw_fd(), libc::TIOCGPTN, &raw mut number),
        )
    };
    assert_eq!(results, (0, 0), "{}", std::io::Error::last_os_error());
    (keys, open(&format!("/dev/pts/{number}")))
}

impl Terminal {
    fn new() -> Self {
        let (keys, programs) = pair();
        let side = || programs.try_clone().expect("a descriptor");
        let mut shell = Command::new("bash");
        shell
            .args(["--norc", "--noprofile", "-i"])
            .env("TERM", "dumb")
            .stdin(side())
            .stdout(side())
            .stderr(side());
        // SAFETY: these calls only change the new process. Its input is the terminal.
        unsafe {
            shell.pre_exec(|| {
                // Whoever runs tests in the background may ignore these.
                for signal in [libc::SIGINT, libc::SIGQUIT] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                if libc::setsid() == -1 || libc::ioctl(0, libc::TIOCSCTTY, 0) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let shell = shell.spawn().expect("bash can be run");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut out, all) = (keys.try_clone().expect("a descriptor"), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut buffer) {
                all.lock()
                    .expect("nobody panics")
                    .extend_from_slice(&buffer[..count]);
            }
        });
        let mut terminal = Self {
            shell,
            keys,
            shown,
            seen: 0,
        };
        // The terminal also shows what is typed.
        terminal.press("PS1='[pro''mpt]'\n");
        terminal.see("[prompt]");
        terminal
    }

    fn press(&mut self, keys: &str) {
        self.keys
            .write_all(keys.as_bytes())
            .expect("the terminal is there");
    }

    /// Waits until this is shown, after what was already seen.
    #[track_caller]
    fn see(&mut self, text: &str) {
        let started = Instant::now();
        loop {
            let shown = self.shown.lock().expect("nobody panics").clone();
            let new = String::from_utf8_lossy(&shown[self.seen..]).into_owned();
            if let Some(at) = new.find(text) {
                self.seen += at + text.len();
                return;
            }
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{text} is not shown: {new:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.keys.write_all(b"\x03\nkill -9 %1\nexit\n\nexit\n");
        std::thread::sleep(Duration::from_millis(100));
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// The program by itself, and recorded with these options.
fn commands(test: &str, options: &[&str]) -> Vec<String> {
    let program = build("terminal.c", Kind::Pie, &[]).display().to_string();
    let mut commands = vec![program.clone()];
    for (index, option) in options.iter().enumerate() {
        let data = scratch(&format!("{test}-{index}")).join("data");
        let (hodo, data) = (hodo().display(), data.display());
        commands.push(format!("{hodo} record -d {data} {option} {program}"));
    }
    commands
}

#[test]
fn a_program_that_tidies_up_before_it_stops() {
    for command in commands("tidies_up", &["", "--keep-pid", "-l"]) {
        let mut terminal = Terminal::new();
        terminal.press(&format!("{command}\n"));
        terminal.see("[ready]");
        for _ in 0..2 {
            terminal.press("\x1a");
            terminal.see("[tidied]");
            terminal.see("Stopped");
            terminal.see("[prompt]");
            terminal.press("fg\n");
            terminal.see("[back]");
        }
        terminal.press("\x03");
        terminal.see("[prompt]");
        terminal.press("echo status $?\n");
        terminal.see("status 130");
    }
}

#[test]
fn a_program_that_stops_and_continues_in_the_background() {
    for command in commands("in_the_background", &["", "--keep-pid"]) {
        let mut terminal = Terminal::new();
        terminal.press(&format!("{command} plain\n"));
        terminal.see("[ready]");
        terminal.press("\x1a");
        terminal.see("Stopped");
        terminal.see("[prompt]");
        terminal.press("bg\n");
        terminal.see("[prompt]");
        terminal.press("jobs\n");
        terminal.see("Running");
        terminal.press("kill %1; wait %1; echo status $?\n");
        terminal.see("status 143");
    }
}

#[test]
fn a_program_that_does_not_want_to_stop() {
    for command in commands("does_not_stop", &["", "--keep-pid"]) {
        let mut terminal = Terminal::new();
        terminal.press(&format!("{command} ignores\n"));
        terminal.see("[ready]");
        terminal.press("\x1a");
        terminal.see("[asked]");
        terminal.press("\x1a");
        terminal.see("[asked]");
        terminal.press("\x03");
        terminal.see("[prompt]");
        terminal.press("echo status $?\n");
        terminal.see("status 130");
    }
}
