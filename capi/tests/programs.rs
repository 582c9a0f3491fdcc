//! C programs that use the header and the libraries, which `cargo test` has built beside this program.

#[allow(dead_code, reason = "the client's tests use more of it")]
#[path = "../../client/tests/attached/daemon.rs"]
mod daemon;

use std::{
    ffi::{OsStr, OsString},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use daemon::{Daemon, Settings};
use tempfile::TempDir;

const TASKS: [&str; 2] = ["ps0.train:2222", "worker0.train:2222"];

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The directory of the libraries.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A daemon in a directory that also has room for programs.
fn daemon() -> (TempDir, Daemon) {
    let directory = TempDir::new().unwrap();
    let tasks = TASKS.map(str::to_owned).to_vec();
    let daemon = Daemon::start(&directory, Settings { shards: 2, tasks });
    (directory, daemon)
}

/// The compiler, set to standard C; `None`, with a message, if there is none.
fn cc() -> Option<Command> {
    if Command::new("cc").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no cc");
        return None;
    }
    let mut cc = Command::new("cc");
    cc.args(["-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(here("include"));
    Some(cc)
}

fn done(mut command: Command) -> Output {
    let output = command.output().unwrap();
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{}", told(&output.stdout), told(&output.stderr));
    output
}

/// Compiles a program that finds the shared library beside itself, under the name with the interface's version.
fn compile(source: &str, to: &Path, more: &[&str]) -> Option<()> {
    let mut cc = cc()?;
    let (libraries, folder) = (libraries(), to.parent().unwrap());
    let versioned = format!("libsealane_c.so.{}", sealane_c::SEALANE_ABI_VERSION);
    symlink(libraries.join("libsealane_c.so"), folder.join(versioned)).unwrap();
    cc.args(["-std=c11", "-pedantic", "-D_POSIX_C_SOURCE=200809L"]).args(more).arg(here(source)).arg("-o").arg(to);
    cc.arg("-L").arg(&libraries).arg(format!("-Wl,-rpath,{}", folder.display())).args(["-lsealane_c", "-lpthread"]);
    done(cc);
    Some(())
}

/// A line of `sealane.pc`, split at its spaces.
fn pkg_config(line: &str) -> Vec<String> {
    let text = std::fs::read_to_string(here("sealane.pc.in")).unwrap();
    let said = text.lines().find_map(|each| each.strip_prefix(line)).expect("there is such a line");
    said.split_whitespace().map(str::to_owned).collect()
}

fn run(program: &Path, arguments: &[&OsStr]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    String::from_utf8(done(command).stdout).unwrap()
}

#[test]
fn a_program_in_c_goes_through_the_interface() {
    let (directory, daemon) = daemon();
    let program = directory.path().join("interface");
    if compile("tests/c/interface.c", &program, &[]).is_some() {
        assert_eq!(run(&program, &[daemon.socket.as_os_str()]), "all is well\n");
    }
}

#[test]
fn the_same_program_leaves_no_memory_and_touches_none_that_is_not_its_own() {
    let (directory, daemon) = daemon();
    let probe = directory.path().join("probe");
    let Some(mut cc) = cc() else { return };
    std::fs::write(directory.path().join("probe.c"), "int main(void) { return 0; }\n").unwrap();
    cc.arg("-fsanitize=address").arg(directory.path().join("probe.c")).arg("-o").arg(&probe);
    if !cc.output().unwrap().status.success() || !Command::new(&probe).status().unwrap().success() {
        eprintln!("SKIPPED: cc has no address sanitizer here");
        return;
    }
    let program = directory.path().join("interface");
    compile("tests/c/interface.c", &program, &["-fsanitize=address"]).unwrap();
    assert_eq!(run(&program, &[daemon.socket.as_os_str()]), "all is well\n");
}

/// Valgrind also checks the library's own memory.
#[test]
fn in_valgrind_neither_the_program_nor_the_library_misuses_memory() {
    let (directory, daemon) = daemon();
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no valgrind");
        return;
    }
    let program = directory.path().join("interface");
    if compile("tests/c/interface.c", &program, &[]).is_none() {
        return;
    }
    let mut valgrind = Command::new("valgrind");
    // Memory that is only possibly lost is neither an error nor shown: Rust's maps and threads keep pointers into the middle of their
    // memory, even where they live as long as the program.
    valgrind.args(["--quiet", "--leak-check=full", "--show-leak-kinds=definite,indirect"]);
    // The first error ends the program, so that errors in its child are noticed too.
    valgrind.args(["--errors-for-leak-kinds=definite,indirect", "--error-exitcode=99", "--exit-on-first-error=yes"]);
    let mut suppressions = OsString::from("--suppressions=");
    suppressions.push(here("tests/c/valgrind.supp"));
    valgrind.arg(suppressions).arg(&program).arg(&daemon.socket);
    assert_eq!(String::from_utf8(done(valgrind).stdout).unwrap(), "all is well\n");
}

#[test]
fn two_processes_of_the_example_play_ping_pong() {
    let (directory, daemon) = daemon();
    let program = directory.path().join("ping");
    if compile("examples/ping.c", &program, &[]).is_none() {
        return;
    }
    let [ps, worker] = TASKS;
    let sides = [[ps, worker], [worker, ps]].map(|[task, peer]| {
        let arguments = [task, peer, "100"].map(OsStr::new);
        let mut command = Command::new(&program);
        command.args(arguments).arg(&daemon.socket);
        std::thread::spawn(move || String::from_utf8(done(command).stdout).unwrap())
    });
    for side in sides {
        assert_eq!(side.join().unwrap(), "100 rounds, sum 4950\n");
    }
}

#[test]
fn the_static_library_needs_what_pkg_config_says() {
    let (directory, daemon) = daemon();
    let program = directory.path().join("interface");
    let Some(mut cc) = cc() else { return };
    cc.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L"]).arg(here("tests/c/interface.c"));
    cc.arg(libraries().join("libsealane_c.a")).args(pkg_config("Libs.private:")).arg("-o").arg(&program);
    done(cc);
    assert_eq!(run(&program, &[daemon.socket.as_os_str()]), "all is well\n");
}

#[test]
fn the_header_is_cpp_as_well() {
    let directory = TempDir::new().unwrap();
    let Some(mut cc) = cc() else { return };
    let source = directory.path().join("header.cc");
    std::fs::write(
        &source,
        "#include <sealane.h>\n#include <sealane.h>\nint main() { return sealane_text_of(\"\").start == nullptr; }\n",
    )
    .unwrap();
    cc.args(["-x", "c++", "-std=c++11", "-fsyntax-only"]).arg(&source);
    let output = cc.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("cc1plus") {
        eprintln!("SKIPPED: there is no compiler of C++");
        return;
    }
    assert!(output.status.success(), "{said}");
}
