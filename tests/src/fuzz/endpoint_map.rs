//! Text of an endpoint map: parsed, linted, resolved, and printed again.

use sealane_transport::endpoint_map::{EndpointMap, Severity, TaskName, TransportAddress, lint};

use super::assert_says;

/// Parses the text; the map must be consistent with itself and with the linter.
pub(super) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let diagnostics = lint(&text);
    diagnostics.iter().for_each(assert_says);
    let is_wrong = diagnostics.iter().any(|diagnostic| diagnostic.severity() == Severity::Error);
    let map = match EndpointMap::parse(&text, "map") {
        Ok(map) => map,
        Err(error) => {
            assert!(is_wrong, "the linter must find what the parser refuses: {error}");
            return assert_says(&error);
        }
    };
    assert!(!is_wrong, "the parser must refuse what the linter calls wrong: {diagnostics:?}");
    for (task, address) in map.iter() {
        assert_eq!(map.resolve(task.as_str()), Some(address));
        assert!(map.tasks_at(address).any(|other| other == task));
        assert_eq!(task.as_str().parse::<TaskName>().as_ref(), Ok(task));
        assert_eq!(address.to_string().parse::<TransportAddress>().as_ref(), Ok(address));
    }
    let printed = map.to_string();
    assert_eq!(EndpointMap::parse(&printed, "printed").expect("its own print"), map);
    assert_eq!(lint(&printed), []);
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "ps0:2222=127.0.0.1:7000\nworker0:2222=127.0.0.1:7000\n",
        "\u{feff}# head = 1\r\n\ta:1 = h:7 # tail\r\n b.c_d-e.:2\t=\t[::1]:7\r\n#\r\n",
        "[fd00::12]:1=[FD00:0::12]:7\nA:1=a:7\na:1=A:7\n",
        "a:0=h:7\na:1=h:80000\n=\nx\n[::1]=[::1:7\na:1=1.2.3:7\nfd00::7:1=h:01\n",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
