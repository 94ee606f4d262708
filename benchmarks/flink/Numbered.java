import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource.NumberSequenceSplit;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/**
 * Rows by their numbers, as fast as they are taken or at a rate. Lane l of n has the numbers l, l + n, l + 2n, ..., as Penstock's
 * source deals them.
 *
 * <p>Flink's own generator source hands over one record per poll; this one up to 256, which is faster. What a lane has read is
 * part of every checkpoint: the splits are those of NumberSequenceSource, ranges of rows within a lane.
 */
public final class Numbered<T> implements Source<T, NumberSequenceSplit, Collection<NumberSequenceSplit>> {
    private static final int ROWS_PER_POLL = 256;
    private static final long IDLE_NANOS = 200_000;
    private static final long IDLE_NANOS_MAX = 100_000_000;
    static final double NONE = -1; // a rate: no rows at all

    /** Makes a row. */
    interface Maker<T> extends Serializable {
        void open(int lane, long skip) throws IOException;

        T make(long number, long dueNanos) throws IOException;
    }

    private final NumberSequenceSource ranges;
    private final Maker<T> maker;
    private final int lanes;
    private final long rowsPerLane;
    private final double rate;
    private final double seconds;

    /** `rate`: rows a second over all lanes; 0 for as fast as possible. */
    Numbered(long rows, int lanes, double rate, Maker<T> maker) {
        this(rows, lanes, rate, maker, 0);
    }

    /** `seconds`: when to end whatever is left, by the clock of Load, which all lanes share; 0 for no such end. */
    Numbered(long rows, int lanes, double rate, Maker<T> maker, double seconds) {
        if (rows % lanes != 0) {
            throw new IllegalArgumentException(rows + " rows cannot be dealt evenly to " + lanes + " lanes");
        }
        this.ranges = new NumberSequenceSource(0, rows - 1);
        this.maker = maker;
        this.lanes = lanes;
        this.rowsPerLane = rows / lanes;
        this.rate = rate;
        this.seconds = seconds;
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.CONTINUOUS_UNBOUNDED; // so that it runs as a stream, not as a batch
    }

    @Override
    public SourceReader<T, NumberSequenceSplit> createReader(SourceReaderContext context) {
        return new Reader(context);
    }

    private final class Reader implements SourceReader<T, NumberSequenceSplit> {
        private final SourceReaderContext context;
        private final ArrayDeque<NumberSequenceSplit> waiting = new ArrayDeque<>();
        private final ScheduledExecutorService alarm =
                Executors.newSingleThreadScheduledExecutor(
                        work -> {
                            Thread thread = new Thread(work);
                            thread.setDaemon(true);
                            return thread;
                        });
        private CompletableFuture<Void> available = new CompletableFuture<>();
        private boolean noMore;
        private NumberSequenceSplit split;
        private long next; // within the split's range
        private long first; // where this lane began to count time
        private long beganNanos;
        private int lane;

        Reader(SourceReaderContext context) {
            this.context = context;
        }

        @Override
        public void start() {
            context.sendSplitRequest();
        }

        @Override
        public InputStatus pollNext(ReaderOutput<T> output) throws Exception {
            if (split == null && !open()) {
                return noMore ? InputStatus.END_OF_INPUT : nothing();
            }
            long elapsed = System.nanoTime() - beganNanos;
            if (seconds > 0 && elapsed >= seconds * 1e9) {
                split = null;
                return InputStatus.END_OF_INPUT;
            }
            long end = Math.min(split.to() + 1, next + ROWS_PER_POLL);
            if (rate != 0) {
                long due = rate > 0 ? first + (long) (elapsed * (rate / lanes / 1e9)) + 1 : first;
                if (due <= next) {
                    return wakeAt(rate > 0 ? dueNanos(next) : Long.MAX_VALUE);
                }
                end = Math.min(end, due);
            }
            long base = (long) lane * rowsPerLane;
            for (; next < end; next++) {
                output.collect(maker.make((next - base) * lanes + lane, rate == 0 ? 0 : dueNanos(next)));
            }
            if (next > split.to()) {
                split = null;
                context.sendSplitRequest();
            }
            return InputStatus.MORE_AVAILABLE;
        }

        private long dueNanos(long row) {
            return beganNanos + (long) ((row - first) * lanes * (1e9 / rate));
        }

        private boolean open() throws IOException {
            split = waiting.poll();
            if (split == null) {
                return false;
            }
            first = next = split.from();
            lane = (int) (next / rowsPerLane);
            maker.open(lane, next - lane * rowsPerLane);
            beganNanos = seconds > 0 ? Load.begin() : System.nanoTime();
            return true;
        }

        private InputStatus nothing() {
            available = new CompletableFuture<>();
            if (!waiting.isEmpty() || noMore) {
                available.complete(null);
            }
            return InputStatus.NOTHING_AVAILABLE;
        }

        /** When the next row is due; not sooner than in a moment, and soon enough to notice the end. */
        private InputStatus wakeAt(long nanos) {
            CompletableFuture<Void> asleep = new CompletableFuture<>();
            available = asleep;
            long wait = Math.max(IDLE_NANOS, Math.min(nanos - System.nanoTime(), IDLE_NANOS_MAX));
            alarm.schedule(() -> asleep.complete(null), wait, TimeUnit.NANOSECONDS);
            return InputStatus.NOTHING_AVAILABLE;
        }

        @Override
        public List<NumberSequenceSplit> snapshotState(long checkpoint) {
            List<NumberSequenceSplit> left = new ArrayList<>(waiting);
            if (split != null) {
                left.add(new NumberSequenceSplit(split.splitId(), next, split.to()));
            }
            return left;
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return available;
        }

        @Override
        public void addSplits(List<NumberSequenceSplit> splits) {
            waiting.addAll(splits);
            available.complete(null);
        }

        @Override
        public void notifyNoMoreSplits() {
            noMore = true;
            available.complete(null);
        }

        @Override
        public void close() {
            alarm.shutdownNow();
        }
    }

    // The rest is NumberSequenceSource's.

    @Override
    public SplitEnumerator<NumberSequenceSplit, Collection<NumberSequenceSplit>> createEnumerator(
            SplitEnumeratorContext<NumberSequenceSplit> context) {
        return ranges.createEnumerator(context);
    }

    @Override
    public SplitEnumerator<NumberSequenceSplit, Collection<NumberSequenceSplit>> restoreEnumerator(
            SplitEnumeratorContext<NumberSequenceSplit> context, Collection<NumberSequenceSplit> splits) {
        return ranges.restoreEnumerator(context, splits);
    }

    @Override
    public SimpleVersionedSerializer<NumberSequenceSplit> getSplitSerializer() {
        return ranges.getSplitSerializer();
    }

    @Override
    public SimpleVersionedSerializer<Collection<NumberSequenceSplit>> getEnumeratorCheckpointSerializer() {
        return ranges.getEnumeratorCheckpointSerializer();
    }
}
