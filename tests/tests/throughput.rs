//! The protocol's cost on a simulated network, compared with the committed table.

use std::path::Path;

use sealane_tests::throughput::table;

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots/throughput.txt");

#[test]
fn throughput_of_the_simulated_network_is_as_committed() {
    let found = table().unwrap();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(Path::new(SNAPSHOT).parent().expect("it is in a folder")).unwrap();
        std::fs::write(SNAPSHOT, &found).unwrap();
    }
    let committed = std::fs::read_to_string(SNAPSHOT).unwrap_or_default();
    assert!(
        found == committed,
        "the protocol costs something else than tests/snapshots/throughput.txt says. If that is meant, renew it with\n\
         UPDATE_SNAPSHOTS=1 cargo test -p sealane-tests throughput\nand commit it. Found:\n{found}"
    );
}

#[test]
fn throughput_of_the_simulated_network_is_the_same_each_time() {
    assert_eq!(table().unwrap(), table().unwrap());
}
