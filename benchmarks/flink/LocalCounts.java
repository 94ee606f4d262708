import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.BoundedOneInput;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;

/**
 * Counts per campaign and window before the exchange, as Flink SQL's local aggregate does: (campaign, count) with the window's start
 * as timestamp. What was counted is sent before every watermark and every barrier, so nothing of it belongs to a checkpoint.
 */
final class LocalCounts extends AbstractStreamOperator<Tuple2<String, Long>>
        implements OneInputStreamOperator<Tuple2<String, Long>, Tuple2<String, Long>>, BoundedOneInput {
    private final long windowMs;
    private transient Map<Long, Map<String, long[]>> windows;
    private transient long start; // of the window of the last row, and what was counted there
    private transient Map<String, long[]> counts;

    LocalCounts(long windowMs) {
        this.windowMs = windowMs;
    }

    @Override
    public void open() throws Exception {
        super.open();
        windows = new HashMap<>();
        start = Long.MIN_VALUE;
    }

    @Override
    public void processElement(StreamRecord<Tuple2<String, Long>> element) {
        Tuple2<String, Long> view = element.getValue();
        long time = element.getTimestamp();
        if (time < start || time >= start + windowMs || counts == null) {
            start = Math.floorDiv(time, windowMs) * windowMs;
            counts = windows.computeIfAbsent(start, window -> new HashMap<>());
        }
        long[] count = counts.get(view.f0);
        if (count == null) {
            counts.put(view.f0, new long[] {1});
        } else {
            count[0]++;
        }
    }

    @Override
    public void processWatermark(Watermark watermark) throws Exception {
        send();
        super.processWatermark(watermark);
    }

    @Override
    public void prepareSnapshotPreBarrier(long checkpoint) {
        send();
    }

    @Override
    public void endInput() {
        send();
    }

    private void send() {
        windows.forEach(
                (window, found) ->
                        found.forEach((campaign, count) -> output.collect(new StreamRecord<>(Tuple2.of(campaign, count[0]), window))));
        windows.clear();
        counts = null;
    }
}
