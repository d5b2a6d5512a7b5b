import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Random;
import java.util.concurrent.Executors;

/**
 * POST answers with the body's SHA-256 and length; GET /N answers with N random bytes,
 * their SHA-256 in a header. The same protocol as http_server.js.
 * java HttpServe.java PORT
 */
public class HttpServe {
    public static void main(String[] arguments) throws IOException {
        var address = new InetSocketAddress("0.0.0.0", Integer.parseInt(arguments[0]));
        var server = HttpServer.create(address, 0);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", HttpServe::answer);
        server.start();
    }

    private static void answer(HttpExchange exchange) throws IOException {
        try (exchange) {
            byte[] received = exchange.getRequestBody().readAllBytes();
            byte[] body;
            if (exchange.getRequestMethod().equals("POST")) {
                body = (sha256(received) + " " + received.length).getBytes();
            } else {
                body = new byte[Integer.parseInt(exchange.getRequestURI().getPath().substring(1))];
                new Random().nextBytes(body);
                exchange.getResponseHeaders().set("x-sha256", sha256(body));
            }
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
        }
    }

    private static String sha256(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (GeneralSecurityException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
