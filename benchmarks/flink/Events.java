import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The ad events of workload.py: event i is a function of i alone. Only what the job uses is made, as Penstock's source does. */
public final class Events {
    static final long START_US = 1_767_225_600_000_000L;
    static final int ROWS_PER_MS = 100;
    static final String[] KINDS = {"view", "click", "purchase"};

    /** One event. The source uses the same object for all of them: object reuse is on. */
    public static final class Event {
        public String ad;
        public String kind;
        public long at;
    }

    /** Makes events by their numbers. */
    static final class Maker implements Numbered.Maker<Event> {
        private final List<String> ads;
        private transient String[] pool;
        private transient Event event;

        Maker(List<String> ads) {
            this.ads = ads;
        }

        @Override
        public void open(int lane, long skip) {
            pool = ads.toArray(new String[0]);
            event = new Event();
        }

        @Override
        public Event make(long number, long dueNanos) {
            long bits = mix(number);
            event.ad = pool[(int) (((bits & 0xFFFFFFFFL) * pool.length) >>> 32)];
            event.kind = KINDS[(int) (((bits >>> 32) * KINDS.length) >>> 32)];
            event.at = START_US + number * 1000 / ROWS_PER_MS;
            return event;
        }
    }

    /** splitmix64. */
    static long mix(long number) {
        long bits = number * 0x9E3779B97F4A7C15L + 0x9E3779B97F4A7C15L;
        bits = (bits ^ (bits >>> 30)) * 0xBF58476D1CE4E5B9L;
        bits = (bits ^ (bits >>> 27)) * 0x94D049BB133111EBL;
        return bits ^ (bits >>> 31);
    }

    /** The lines `ad,campaign` of a file, in order. */
    static Map<String, String> campaigns(String file) throws IOException {
        Map<String, String> found = new LinkedHashMap<>();
        for (String line : Files.readAllLines(Path.of(file))) {
            String[] parts = line.split(",");
            found.put(parts[0], parts[1]);
        }
        return found;
    }

    private Events() {}
}
