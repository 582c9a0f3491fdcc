//! Reads what perftest's programs print: a heading that starts with `#bytes`, and under it a row of figures.

/// What perftest calls a megabyte.
const MEBIBYTE: f64 = 1_048_576.0;

/// Microseconds one way, the median, as an `ib_*_lat` printed it.
pub(crate) fn latency_us(printed: &str) -> Option<f64> {
    figure(printed, "t_typical[usec]")
}

/// Bytes a second, the average, as an `ib_*_bw` printed it.
pub(crate) fn bytes_per_s(printed: &str) -> Option<f64> {
    figure(printed, "BW average[MB/sec]").map(|mebibytes| mebibytes * MEBIBYTE)
}

/// The first row's figure in a column. Columns are told apart by their units, as names may be of several words.
fn figure(printed: &str, column: &str) -> Option<f64> {
    let mut lines = printed.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let before = lines.next()?.split_once(column)?.0;
    // `#bytes` and `#iterations` come first and have no unit.
    let position = 2 + before.matches(']').count();
    lines.next()?.split_whitespace().nth(position)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: &str = " TX depth        : 1
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 64      1000          9.68           153.20       9.99     \t       10.64       \t4.42   \t\t26.15   \t\t153.20 
---------------------------------------------------------------------------------------
";

    const BANDWIDTH: &str = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 1048576    200              63.35              61.50  \t\t   0.000061
";

    #[test]
    fn figures_are_found_by_their_column() {
        assert_eq!(latency_us(LATENCY), Some(9.99));
        assert_eq!(figure(LATENCY, "99% percentile[usec]"), Some(26.15));
        assert_eq!(bytes_per_s(BANDWIDTH), Some(61.5 * MEBIBYTE));
    }

    #[test]
    fn what_is_not_there_is_not_invented() {
        assert_eq!(latency_us(BANDWIDTH), None);
        assert_eq!(latency_us("Couldn't connect to 10.9.0.1:18515\n"), None);
        let heading = BANDWIDTH.lines().next().unwrap();
        assert_eq!(bytes_per_s(heading), None);
    }
}
