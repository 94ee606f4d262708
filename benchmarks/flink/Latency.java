import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/** How late rows are counted: the work of latency.py. A row is (key, when it is due, count); each is due at its own moment. */
final class Latency {
    static final int KEYS = 100;
    private static final int LONGEST_US = 2_000_000;
    private static final int LONGEST_MS = 100_000;
    static final TypeInformation<Tuple3<Long, Long, Long>> ROW = Types.TUPLE(Types.LONG, Types.LONG, Types.LONG);

    private static final AtomicIntegerArray LATE = new AtomicIntegerArray(LONGEST_US); // how many rows were so many us late
    private static final AtomicLong MOST = new AtomicLong();
    private static final AtomicLong CHECKPOINTS = new AtomicLong();
    private static final AtomicLong COUNTED = new AtomicLong();
    private static final AtomicIntegerArray COMMITTED = new AtomicIntegerArray(LONGEST_MS); // of the load sweep, in ms
    static final AtomicLongArray LAST = new AtomicLongArray(KEYS); // the newest count of each key

    static void reset() {
        for (int late = 0; late < LONGEST_US; late++) {
            LATE.lazySet(late, 0);
        }
        for (int late = 0; late < LONGEST_MS; late++) {
            COMMITTED.lazySet(late, 0);
        }
        for (int key = 0; key < KEYS; key++) {
            LAST.set(key, 0);
        }
        MOST.set(0);
        CHECKPOINTS.set(0);
        COUNTED.set(0);
    }

    static void build(StreamExecutionEnvironment env, long rate, long rows, int lanes, double warmSeconds) {
        long warm = (long) (rate * warmSeconds);
        build(env, new Numbered<>(rows, lanes, rate, new Paced(warm)), false);
    }

    /** `committed`: whether to note as well how late rows are committed. */
    static void build(StreamExecutionEnvironment env, Numbered<Tuple3<Long, Long, Long>> source, boolean committed) {
        count(env.fromSource(source, WatermarkStrategy.noWatermarks(), "paced", ROW), committed);
    }

    static void count(DataStream<Tuple3<Long, Long, Long>> rows, boolean committed) {
        rows.keyBy(row -> row.f0, Types.LONG)
                .process(new Running())
                .returns(ROW)
                .map(new Note(committed))
                .returns(Types.LONG)
                .sinkTo(new DiscardingSink<>());
    }

    /** Rows at the start are not measured: their third field is -1 until they are counted, and then negative. */
    static final class Paced implements Numbered.Maker<Tuple3<Long, Long, Long>> {
        private final long warm;
        private transient Tuple3<Long, Long, Long> row;

        Paced(long warm) {
            this.warm = warm;
        }

        @Override
        public void open(int lane, long skip) {
            row = new Tuple3<>();
        }

        @Override
        public Tuple3<Long, Long, Long> make(long number, long dueNanos) {
            row.f0 = number % KEYS;
            row.f1 = dueNanos;
            row.f2 = number < warm ? -1L : 1L;
            return row;
        }
    }

    static final class Running extends KeyedProcessFunction<Long, Tuple3<Long, Long, Long>, Tuple3<Long, Long, Long>> {
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(Tuple3<Long, Long, Long> row, Context context, Collector<Tuple3<Long, Long, Long>> out)
                throws Exception {
            Long before = count.value();
            long now = before == null ? 1 : before + 1;
            count.update(now);
            row.f2 *= now;
            out.collect(row);
        }
    }

    static final class Note implements MapFunction<Tuple3<Long, Long, Long>, Long>, CheckpointListener, CheckpointedFunction {
        private final boolean committed;
        private transient Map<Long, long[]> waiting; // for a checkpoint to be complete: when rows were due
        private transient long[] due;
        private transient int size;

        Note(boolean committed) {
            this.committed = committed;
        }

        @Override
        public void initializeState(FunctionInitializationContext context) {
            waiting = new HashMap<>();
            due = new long[1024];
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) {
            if (committed) {
                waiting.put(context.getCheckpointId(), Arrays.copyOf(due, size));
                size = 0;
            }
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            CHECKPOINTS.accumulateAndGet(checkpoint, Math::max);
            Load.completes(checkpoint);
            long now = System.nanoTime();
            waiting.forEach(
                    (id, rows) -> {
                        for (int row = 0; id <= checkpoint && row < rows.length; row++) {
                            COMMITTED.getAndIncrement((int) Math.max(0, Math.min((now - rows[row]) / 1_000_000, LONGEST_MS - 1)));
                        }
                    });
            waiting.keySet().removeIf(id -> id <= checkpoint);
        }

        @Override
        public Long map(Tuple3<Long, Long, Long> row) {
            COUNTED.getAndIncrement();
            LAST.lazySet(row.f0.intValue(), Math.abs(row.f2));
            if (row.f2 > 0) {
                long late = (System.nanoTime() - row.f1) / 1000;
                LATE.getAndIncrement((int) Math.max(0, Math.min(late, LONGEST_US - 1)));
                if (late > MOST.get()) {
                    MOST.accumulateAndGet(late, Math::max);
                }
                if (committed) {
                    due = size < due.length ? due : Arrays.copyOf(due, 2 * size);
                    due[size++] = row.f1;
                }
            }
            return row.f2;
        }
    }

    static Map<String, Object> results() {
        long measured = 0;
        for (int late = 0; late < LONGEST_US; late++) {
            measured += LATE.get(late);
        }
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("counted", COUNTED.get());
        found.put("measured", measured);
        found.put("p50_ms", percentile(LATE, measured, 0.5) / 1e3);
        found.put("p99_ms", percentile(LATE, measured, 0.99) / 1e3);
        found.put("p999_ms", percentile(LATE, measured, 0.999) / 1e3);
        found.put("max_ms", MOST.get() / 1e3);
        found.put("commits", CHECKPOINTS.get());
        return found;
    }

    /** Of the load sweep; nothing if no row was measured. */
    static Map<String, Double> late() {
        Map<String, Double> found = new LinkedHashMap<>();
        long counted = 0;
        long committed = 0;
        for (int late = 0; late < LONGEST_US; late++) {
            counted += LATE.get(late);
        }
        for (int late = 0; late < LONGEST_MS; late++) {
            committed += COMMITTED.get(late);
        }
        for (int percent : new int[] {50, 99}) {
            if (counted > 0) {
                found.put("p" + percent + "_ms", percentile(LATE, counted, percent / 100.0) / 1e3);
            }
            if (committed > 0) {
                found.put("committed_p" + percent + "_ms", (double) percentile(COMMITTED, committed, percent / 100.0));
            }
        }
        return found;
    }

    private static int percentile(AtomicIntegerArray counts, long measured, double share) {
        long left = (long) (measured * share);
        int late = 0;
        while (late < counts.length() - 1 && (left -= counts.get(late)) >= 0) {
            late++;
        }
        return late;
    }

    private Latency() {}
}
